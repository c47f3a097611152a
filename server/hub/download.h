/* Files of a repository into the cache: several at once, resumed where a download was broken off, checked, and
 * published as huggingface_hub does.  The downloading thread only. */
#ifndef TANDEM_SERVER_HUB_DOWNLOAD_H
#define TANDEM_SERVER_HUB_DOWNLOAD_H

#include "server/hub/listing.h"
#include "server/hub/progress.h"
#include "server/hub/repo.h"

struct download {
    const struct hub *hub;
    const struct repo_name *name;
    const char *commit;
    struct progress *progress;
};

/* Makes the directories of the repository and of the snapshot. */
int download_prepare(const struct download *, struct err *e);
/* Downloads those of the files that are missing.  @return 0; or an error code with *e: what was loaded stays. */
int download_files(const struct download *, const struct hub_file *const *files, int n, struct err *e);
/* Writes refs/REVISION, so that the revision's name finds the snapshot. */
int download_publish(const struct download *, struct err *e);
char *download_snapshot(const struct download *); /* owned by the caller */

#endif
