/* Views for reading: temporary views that replace a damaged value by NULL or a harmless default, and log it.
 *
 *     job_rows, event_rows, checkpoint_rows    the tables jobs, events, checkpoints, column by column
 *
 * Readers use the views, so that a damaged row affects only itself and not the list that contains it.  Writers use the
 * tables.  A job with a damaged id is in no view, because ids are used as file names. */
#ifndef TANDEM_SERVER_STORE_DB_VIEWS_H
#define TANDEM_SERVER_STORE_DB_VIEWS_H

#include "server/store/db.h"

/* Once per connection, after the migrations.  @return 0, or a negative code and *e. */
int db_views_open(struct db *, struct err *e);
/* Reads every job and checkpoint: logs damaged values, and sets a job in an unknown state to `failed`, so that it can
 * be resumed, cancelled or deleted. */
void db_views_check(struct db *);

#endif
