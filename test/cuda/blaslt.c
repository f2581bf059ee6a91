// libcublasLt.so.13: what the provider asks for when it begins.

enum { OK = 0, NOT_SUPPORTED = 15 };

int cublasLtCreate(void **handle) { static char h; *handle = &h; return OK; }
int cublasLtDestroy(void *handle) { (void)handle; return OK; }

#define NOT_THERE(name) int name(void) { return NOT_SUPPORTED; }
NOT_THERE(cublasLtMatmul) NOT_THERE(cublasLtMatmulAlgoConfigSetAttribute) NOT_THERE(cublasLtMatmulAlgoGetHeuristic) NOT_THERE(cublasLtMatmulAlgoInit)
NOT_THERE(cublasLtMatmulDescCreate) NOT_THERE(cublasLtMatmulDescDestroy) NOT_THERE(cublasLtMatmulDescSetAttribute)
NOT_THERE(cublasLtMatmulPreferenceCreate) NOT_THERE(cublasLtMatmulPreferenceDestroy) NOT_THERE(cublasLtMatmulPreferenceSetAttribute)
NOT_THERE(cublasLtMatrixLayoutCreate) NOT_THERE(cublasLtMatrixLayoutDestroy) NOT_THERE(cublasLtMatrixLayoutSetAttribute)
NOT_THERE(cublasLtMatrixTransform) NOT_THERE(cublasLtMatrixTransformDescCreate) NOT_THERE(cublasLtMatrixTransformDescDestroy)
