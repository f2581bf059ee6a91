#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define TRY(call)                                    \
  do {                                               \
    int try_code = take(rt, c, (call));              \
    if (try_code != 0) return try_code;              \
  } while (0)

static int take(const nrt_runtime *rt, nrt_call *c, OrtStatus *status) {
  if (status == NULL) return 0;
  int code = ORT(rt->api, GetErrorCode)(status);
  snprintf(c->error, NRT_ERROR_BYTES, "%s", ORT(rt->api, GetErrorMessage)(status));
  ORT(rt->api, ReleaseStatus)(status);
  return code == 0 ? ORT_FAIL : code;
}

static int invalid(nrt_call *c, const nrt_tensor *t, const char *what) {
  snprintf(c->error, NRT_ERROR_BYTES, "tensor '%s': %s", t->name, what);
  return ORT_INVALID_ARGUMENT;
}

static int64_t elements(const nrt_tensor *t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t->rank; i++) n *= t->dims[i];
  return n;
}

// An address that is never read, for tensors without elements: a NULL means
// that the runtime shall allocate.
static char nothing;

static int wrap(const nrt_runtime *rt, nrt_call *c, nrt_tensor *t) {
  TRY(ORT(rt->api, CreateTensorWithDataAsOrtValue)(rt->cpu, t->data != NULL ? t->data : &nothing, (size_t)t->bytes, t->dims,
                                                   (size_t)t->rank, t->type, &t->value));
  return 0;
}

// fill_strings makes a string tensor of length-prefixed elements. The bounds
// are checked here because the bytes may be memory that others can change.
static int fill_strings(const nrt_runtime *rt, nrt_call *c, nrt_tensor *t) {
  TRY(ORT(rt->api, CreateTensorAsOrtValue)(rt->allocator, t->dims, (size_t)t->rank, t->type, &t->value));
  const char *at = t->data;
  int64_t left = t->bytes;
  int64_t n = elements(t);
  for (int64_t i = 0; i < n; i++) {
    uint32_t length;
    if (left < (int64_t)sizeof length) return invalid(c, t, "fewer string elements than its shape needs");
    memcpy(&length, at, sizeof length);
    at += sizeof length;
    left -= (int64_t)sizeof length;
    if ((int64_t)length > left) return invalid(c, t, "a string element is cut off");
    char *element = NULL;
    TRY(ORT(rt->api, GetResizedStringTensorElementBuffer)(t->value, (size_t)i, length, &element));
    memcpy(element, at, length);
    at += length;
    left -= (int64_t)length;
  }
  return left == 0 ? 0 : invalid(c, t, "more string elements than its shape needs");
}

// pack_strings copies a string tensor to length-prefixed elements.
static int pack_strings(const nrt_runtime *rt, nrt_call *c, nrt_tensor *t) {
  int64_t n = elements(t);
  size_t total = 0;
  for (int64_t i = 0; i < n; i++) {
    size_t length = 0;
    TRY(ORT(rt->api, GetStringTensorElementLength)(t->value, (size_t)i, &length));
    if (length > UINT32_MAX) return invalid(c, t, "a string element of 4 GiB or more");
    total += sizeof(uint32_t) + length;
  }
  char *packed = malloc(total + 1);
  if (packed == NULL) return invalid(c, t, "no memory for its strings");
  t->data = packed;
  t->packed = 1;
  t->bytes = (int64_t)total;
  for (int64_t i = 0; i < n; i++) {
    size_t length = 0;
    TRY(ORT(rt->api, GetStringTensorElementLength)(t->value, (size_t)i, &length));
    uint32_t prefix = (uint32_t)length;
    memcpy(packed, &prefix, sizeof prefix);
    TRY(ORT(rt->api, GetStringTensorElement)(t->value, length, (size_t)i, packed + sizeof prefix));
    packed += sizeof prefix + length;
  }
  ORT(rt->api, ReleaseValue)(t->value);
  t->value = NULL;
  return 0;
}

// describe fills in what the runtime allocated for an output.
static int describe(const nrt_runtime *rt, nrt_call *c, nrt_tensor *t) {
  OrtTensorInfo *info = NULL;
  int type = 0;
  size_t rank = 0;
  TRY(ORT(rt->api, GetTensorTypeAndShape)(t->value, &info));
  int code = take(rt, c, ORT(rt->api, GetTensorElementType)(info, &type));
  if (code == 0) code = take(rt, c, ORT(rt->api, GetDimensionsCount)(info, &rank));
  if (code == 0 && rank > NRT_MAX_RANK) code = invalid(c, t, "more dimensions than are supported");
  if (code == 0) code = take(rt, c, ORT(rt->api, GetDimensions)(info, t->dims, rank));
  ORT(rt->api, ReleaseTensorTypeAndShapeInfo)(info);
  if (code != 0) return code;
  t->type = type;
  t->rank = (int32_t)rank;
  if (type == ORT_TYPE_STRING) return pack_strings(rt, c, t);
  TRY(ORT(rt->api, GetTensorMutableData)(t->value, &t->data));
  return 0;
}

static int make_values(const nrt_runtime *rt, nrt_call *c) {
  int code = 0;
  for (int32_t i = 0; i < c->inputs && code == 0; i++) {
    nrt_tensor *t = &c->input[i];
    code = t->type == ORT_TYPE_STRING ? fill_strings(rt, c, t) : wrap(rt, c, t);
    c->names[i] = t->name;
    c->values[i] = t->value;
  }
  for (int32_t i = 0; i < c->outputs && code == 0; i++) {
    nrt_tensor *t = &c->output[i];
    if (t->data != NULL) code = wrap(rt, c, t);
    c->names[c->inputs + i] = t->name;
    c->values[c->inputs + i] = t->value;
  }
  return code;
}

static int run_session(const nrt_runtime *rt, nrt_call *c) {
  OrtValue **results = c->values + c->inputs;
  int code = take(rt, c, ORT(rt->api, Run)(c->session, c->options, c->names, (const OrtValue *const *)c->values,
                                           (size_t)c->inputs, c->names + c->inputs, (size_t)c->outputs, results));
  for (int32_t i = 0; i < c->outputs; i++) {
    nrt_tensor *t = &c->output[i];
    int bound = t->data != NULL;
    t->value = results[i];
    if (code == 0 && !bound) code = t->value != NULL ? describe(rt, c, t) : invalid(c, t, "the model gave no value");
    if (bound && t->value != NULL) {
      ORT(rt->api, ReleaseValue)(t->value);
      t->value = NULL;
    }
  }
  return code;
}

static void drop(const nrt_runtime *rt, nrt_tensor *t) {
  nrt_release(rt, t->value, t->packed ? t->data : NULL);
  t->value = NULL;
  t->packed = 0;
}

int nrt_run(const nrt_runtime *rt, nrt_call *c) {
  for (int32_t i = 0; i < c->inputs; i++) c->input[i].value = NULL;
  for (int32_t i = 0; i < c->outputs; i++) {
    c->output[i].value = NULL;
    c->output[i].packed = 0;
  }
  int code = make_values(rt, c);
  if (code == 0) code = run_session(rt, c);
  for (int32_t i = 0; i < c->inputs; i++) drop(rt, &c->input[i]);
  if (code != 0) {
    for (int32_t i = 0; i < c->outputs; i++) drop(rt, &c->output[i]);
  }
  return code;
}
