/* Rendering a parsed template: the state of one render, and the two halves of the interpreter that call each other
 * (expressions in jinja_eval.c, statements in jinja_run.c). */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_EVAL_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_EVAL_H

#include "engine/template/jinja_ast.h"

/* Variables set inside a loop, a macro, a with...: found by walking outwards.  The outermost ones are run->root. */
struct jvar {
    int id;
    struct jv value;
};
struct jscope {
    struct jscope *outer; /* NULL: then come the template's own */
    struct jvar *vars;    /* (n) */
    size_t n, cap;
    struct jvar few[3];
};

struct jinja_macro {
    const struct jnode *node; /* N_MACRO or N_CALL_BLOCK */
    struct jscope *scope;     /* where it was defined */
};

struct jinja_loop {
    const struct jnode *node;
    const struct jlist *items;
    size_t i;
    int64_t depth0;
    struct jscope *scope; /* around the loop */
    struct jv changed;    /* what loop.changed saw last, or J_MISSING */
};

/* Bytes of the output that a {% generation %} block printed. */
struct jmark {
    size_t start, end;
};

struct jinja_run {
    const struct jprogram *p;
    struct jv *root; /* (p->n_names) J_MISSING: no such variable */
    struct jscope *scope;
    struct jtext *out;  /* where output goes now */
    struct jtext *page; /* the render's output */
    struct jmark *marks;
    size_t n_marks, cap_marks;
};

/* variables: name -> value, a dict of this arena.  The output is in *page. */
void jinja_render(struct jinja *j, const struct jprogram *p, const struct jdict *variables, struct jinja_run *run,
                  struct jtext *page);

struct jv jinja_eval(struct jinja *j, const struct jnode *n);
struct jv jinja_eval_filter(struct jinja *j, const struct jnode *n, struct jv input); /* a chain of a block */
struct jv jinja_eval_call(struct jinja *j, const struct jnode *n, const struct jinja_macro *caller);

enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum jflow jinja_exec(struct jinja *j, const struct jnode *list);
struct jv jinja_loop_again(struct jinja *j, const struct jinja_loop *l, struct jv items); /* loop(items) */

struct jscope *jscope_new(struct jinja *j, struct jscope *outer);
void jscope_set(struct jinja *j, struct jscope *s, int id, struct jv v); /* s NULL: the template's own */
struct jv jscope_get(struct jinja *j, const struct jscope *s, int id);   /* undefined when there is none */

/* What is printed between begin and end becomes the string. */
struct jcapture {
    struct jtext text, *out;
};
void jcapture_begin(struct jinja *j, struct jcapture *c);
struct jv jcapture_end(struct jinja *j, struct jcapture *c);

#endif
