// libcublas.so.13: products of matrices of FP32, column by column as BLAS has them.
#include <stdint.h>

#include "emulated.h"

enum { OK = 0, NOT_SUPPORTED = 15, FP32 = 0 };

typedef struct {
  int ta, tb, m, n, k, lda, ldb, ldc, count;
  float alpha, beta;
  const float *a, *b;
  float *c;
  long long sa, sb, sc;
} product;

static void multiply(void *argument) {
  product *p = argument;
  const float *a = emulated_alias(p->a), *b = emulated_alias(p->b);
  float *c = emulated_alias(p->c);
  for (int i = 0; i < p->count; i++, a += p->sa, b += p->sb, c += p->sc) {
    for (int col = 0; col < p->n; col++) {
      for (int row = 0; row < p->m; row++) {
        float sum = 0;
        for (int l = 0; l < p->k; l++) {
          sum += (p->ta ? a[l + (long)row * p->lda] : a[row + (long)l * p->lda]) * (p->tb ? b[col + (long)l * p->ldb] : b[l + (long)col * p->ldb]);
        }
        float *out = &c[row + (long)col * p->ldc];
        *out = p->alpha * sum + (p->beta != 0 ? p->beta * *out : 0);
      }
    }
  }
}

static int later(product p) {
  emulated_later(multiply, &p, sizeof p);
  return OK;
}

int cublasCreate_v2(void **handle) { static char h; *handle = &h; return OK; }
int cublasDestroy_v2(void *handle) { (void)handle; return OK; }
int cublasSetStream_v2(void *handle, void *stream) { (void)handle, (void)stream; return OK; }
int cublasGetMathMode(void *handle, int *mode) { (void)handle; *mode = 0; return OK; }
int cublasSetMathMode(void *handle, int mode) { (void)handle, (void)mode; return OK; }
const char *cublasGetStatusName(int code) { return code == OK ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED"; }
const char *cublasGetStatusString(int code) { return code == OK ? "success" : "not supported"; }

int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
  (void)h;
  return later((product){ta, tb, m, n, k, lda, ldb, ldc, 1, *alpha, *beta, a, b, c, 0, 0, 0});
}

int cublasSgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, long long sa, const float *b, int ldb, long long sb, const float *beta, float *c, int ldc, long long sc, int count) {
  (void)h;
  return later((product){ta, tb, m, n, k, lda, ldb, ldc, count, *alpha, *beta, a, b, c, sa, sb, sc});
}

int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc, int compute, int algorithm) {
  (void)compute, (void)algorithm;
  if (at != FP32 || bt != FP32 || ct != FP32) return NOT_SUPPORTED;
  return cublasSgemm_v2(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa, const void *b, int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int count, int compute, int algorithm) {
  (void)compute, (void)algorithm;
  if (at != FP32 || bt != FP32 || ct != FP32) return NOT_SUPPORTED;
  return cublasSgemmStridedBatched(h, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count);
}

#define NOT_THERE(name) int name(void) { return NOT_SUPPORTED; }
NOT_THERE(cublasDgeam) NOT_THERE(cublasDgemmBatched) NOT_THERE(cublasDgemmStridedBatched) NOT_THERE(cublasDgemm_v2)
NOT_THERE(cublasDgetrfBatched) NOT_THERE(cublasDgetriBatched) NOT_THERE(cublasGemmBatchedEx) NOT_THERE(cublasScopy_v2)
NOT_THERE(cublasSgeam) NOT_THERE(cublasSgemmBatched) NOT_THERE(cublasSgetrfBatched) NOT_THERE(cublasSgetriBatched) NOT_THERE(cublasSscal_v2)
