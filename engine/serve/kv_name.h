/* Names of KV pages that mean the same in every process: see docs/decisions/022-kv-pages-on-disk.md.
 *
 * A page's name is a hash of the name before it and its tokens; the first page's predecessor is a root: the secret of
 * the directory, the model, the adapter, the salt, and whether the text is a long one (SEQ_FAR).  The model's name is a
 * hash of everything that changes a bit of its keys and values. */
#ifndef TANDEM_ENGINE_SERVE_KV_NAME_H
#define TANDEM_ENGINE_SERVE_KV_NAME_H

#include "engine/base/sha256.h"
#include "engine/kvstore/content.h"
#include "engine/kvstore/dir.h"
#include "engine/kvstore/store.h"
#include "engine/model/adapter.h"
#include "engine/serve/setup.h"

/* Of an opened model.  files: what its weights were read from. */
int kv_model_name(struct kv_name *, const struct setup *, const struct engine_config *,
                  const struct content_files *files, struct err *e);
/* adapter: kv_adapter_content, NULL: none */
struct kv_name kv_root_name(const unsigned char secret[KV_SECRET_BYTES], const struct kv_name *model,
                            const unsigned char *adapter, uint64_t salt, bool far);
/* of the page of these tokens (KV_PAGE) after `parent` */
struct kv_name kv_next_name(const struct kv_name *parent, const int32_t *tokens);
/* Hash of an adapter's matrices and scales. */
void kv_adapter_content(const struct adapter *, unsigned char out[SHA256_BYTES]);

#endif
