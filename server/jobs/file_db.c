#include "server/jobs/file_db.h"

#include "server/json/json.h"

#include <stdlib.h>
#include <string.h>

void file_put(struct buf *b, sqlite3_stmt *q)
{
    buf_str(b, "{\"id\":");
    json_put_string(b, db_text(q, 0), strlen(db_text(q, 0)));
    buf_printf(b, ",\"object\":\"file\",\"bytes\":%lld,\"created_at\":%lld,\"filename\":", (long long)db_int(q, 2),
               (long long)db_int(q, 1) / 1000);
    json_put_string(b, db_text(q, 3), strlen(db_text(q, 3)));
    buf_str(b, ",\"purpose\":");
    json_put_string(b, db_text(q, 4), strlen(db_text(q, 4)));
    buf_str(b, ",\"status\":\"processed\",\"status_details\":null,\"expires_at\":");
    if (db_null(q, 5))
        buf_str(b, "null}");
    else
        buf_printf(b, "%lld}", (long long)db_int(q, 5));
}

bool file_put_by_id(struct db *db, struct buf *b, const char *id)
{
    sqlite3_stmt *q = db_query(db, "SELECT " FILE_COLUMNS " FROM files WHERE id = ?", "t", id);
    if (!db_step(db, q)) return false;
    file_put(b, q);
    db_done(q);
    return true;
}

void file_add_row(struct db *db, const char *id, uint64_t bytes, const char *filename, const char *purpose,
                  int64_t lifetime)
{
    int64_t now = data_now_ms();
    db_run(db, "INSERT INTO files(id, created, bytes, filename, purpose, expires) VALUES(?, ?, ?, ?, ?, nullif(?, 0))",
           "tiitti", id, now, (int64_t)bytes, filename, purpose, lifetime ? now / 1000 + lifetime : (int64_t)0);
}

bool file_add(struct db *db, const char *filename, const char *purpose, const void *p, size_t n, char id[static 40],
              struct err *e)
{
    data_id(id, "file-");
    char *path = data_path(db->dir, "files", id);
    bool good = data_mkdir(db->dir, "files", NULL, e) == 0 && data_write(path, p, n, e) == 0;
    if (good) file_add_row(db, id, n, filename, purpose, 0);
    if (good && db->e.code) {
        *e = db->e;
        data_remove(path);
        good = false;
    }
    free(path);
    return good;
}
