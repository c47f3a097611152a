#include "server/api/served_model.h"

#include "server/api/app.h"
#include "server/net/http.h"

struct served_model *served_model_of(const struct http_req *req)
{
    return req->model ? req->model : ((const struct app *)req->app)->model;
}
