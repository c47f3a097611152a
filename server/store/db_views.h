/* Rows as they are read: temporary views in which a damaged value is NULL or a harmless one, and is logged.
 *
 *     job_rows, event_rows, checkpoint_rows    the tables jobs, events, checkpoints, column by column
 *
 * Readers use the views, so that one damaged row costs itself and not the list it is in.  Writers use the tables.  A
 * job with a damaged id is in no view: ids name files. */
#ifndef TANDEM_SERVER_STORE_DB_VIEWS_H
#define TANDEM_SERVER_STORE_DB_VIEWS_H

#include "server/store/db.h"

/* Once for a connection, after the migrations.  @return 0, or a negative code and *e. */
int db_views_open(struct db *, struct err *e);
/* Reads every job and checkpoint: what is damaged is logged, and a job of no known state becomes `failed`, so that it
 * can be resumed, cancelled or deleted. */
void db_views_check(struct db *);

#endif
