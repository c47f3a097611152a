/* tandem: picks the subcommand. */
#include "server/cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "serve a model over HTTP", cmd_serve},
    {"chat", "talk with a model in the terminal", cmd_chat},
    {"batch", "answer a file of requests", cmd_batch},
    {"generate", "continue a prompt in the terminal", cmd_generate},
    {"tokenize", "text to token ids, and back", cmd_tokenize},
    {"perplexity", "measure a model on a text", cmd_perplexity},
    {"eval", "evaluate a model, its adapters and quantised forms on rows", cmd_eval},
    {"train", "fine-tune a model, or train it from random weights", cmd_train},
    {"plan", "say how a job could be divided over GPUs", cmd_plan},
    {"quantize", "write a model with int8, int4 or nf4 weights", cmd_quantize},
    {"merge", "write a model with an adapter in its weights", cmd_merge},
    {"pull", "download a model from the Hugging Face hub", cmd_pull},
    {"models", "list and remove downloaded models", cmd_models},
    {"health", "check whether a running daemon is healthy", cmd_health},
    {"key", "make, list and revoke API keys", cmd_key},
    {"doctor", "say what slows a model down on this machine", cmd_doctor},
    {"bench", "measure speed beside what the machine could do", cmd_bench},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *out)
{
    fprintf(out, "usage: tandem COMMAND [options]\n\nServes and runs language models.\n\ncommands\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-12s%s\n", commands[i].name, commands[i].about);
    fprintf(out, "  %-12s%s\n  %-12s%s\n", "version", "print the version", "help", "print this");
    fprintf(out, "\ntandem COMMAND --help prints the options of one.\n");
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write, instead of killing the process */
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("tandem %s\n", TANDEM_VERSION);
        return 0;
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    if (*name) fprintf(stderr, "tandem: unknown command '%s'\n", name);
    print_help(stderr);
    return 2;
}
