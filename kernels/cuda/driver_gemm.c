/* driver_gemm.c: linear layers and 1x1 convolutions by cuBLASLt; see driver.h.
 *
 * cuBLAS counts columns first, so that a row-major (rows, columns) is to it a (columns, rows):
 *
 *   forward  y(M,N)  = x(M,K)  w(N,K)^T    is   Y(N,M)  = W(K,N)^T X(K,M)
 *   data     dx(M,K) = dy(M,N) w(N,K)      is   dX(K,M) = W(K,N) dY(N,M)
 *   weights  dw(N,K) = dy(M,N)^T x(M,K)    is   dW(K,N) = X(K,M) dY(N,M)^T */
#include <stdio.h>
#include <string.h>

#include "driver_cuda.h"

#define WORKSPACE_BYTES ((size_t)32 << 20)
/* Alignment of every operand: a parameter begins at a multiple of 16 floats in its block, and of 16
 * elements in the bf16 copy. Without this cuBLASLt takes 256 bytes for granted. */
enum { ALIGN_BYTES = 2 * GRAPH_ALIGN_FLOATS };

bool driver_gemm_fits(const conv_task *t)
{
    const conv_shape *s = &t->s;
    return s->r == 1 && s->s == 1 && s->stride_h == 1 && s->stride_w == 1 && s->pad_h == 0 &&
           s->pad_w == 0 && s->groups == 1;
}

typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulPreference_t preference;
    bool swapped; /* the left matrix is the second operand */
} product;

static void forget(product *p)
{
    if (p->preference)
        cublasLtMatmulPreferenceDestroy(p->preference);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->out)
        cublasLtMatrixLayoutDestroy(p->out);
    if (p->desc)
        cublasLtMatmulDescDestroy(p->desc);
}

#define cleanup_product __attribute__((cleanup(forget)))

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

/* Whether the product itself adds bias and ReLU; bf16 needs a bf16 bias, which does not exist. */
static bool fuses(const conv_task *t)
{
    return t->pass == CONV_FORWARD && t->t == ELEMENT_F32 && (t->bias || t->relu);
}

static cublasStatus_t set_epilogue(const conv_task *t, const float *bias, product *p)
{
    cublasLtEpilogue_t tail = t->bias && t->relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                              : t->bias          ? CUBLASLT_EPILOGUE_BIAS
                                                 : CUBLASLT_EPILOGUE_RELU;
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &tail, sizeof tail));
    if (!t->bias)
        return CUBLAS_STATUS_SUCCESS;
    return set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static cublasStatus_t describe(const conv_task *t, const float *bias, product *p)
{
    uint64_t M = (uint64_t)t->s.n * (uint64_t)t->s.p * (uint64_t)t->s.q;
    uint64_t N = (uint64_t)t->s.k, K = (uint64_t)t->s.c;
    cudaDataType_t type = t->t == ELEMENT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType_t out_type = t->pass == CONV_WEIGHTS ? CUDA_R_32F : type;
    cublasOperation_t turn = CUBLAS_OP_T;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* none that adds in any order */
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t align = ALIGN_BYTES;
    TRY(cublasLtMatmulDescCreate(&p->desc,
                                 t->precision == PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F));
    if (t->pass == CONV_FORWARD) {
        TRY(set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turn, sizeof turn));
        TRY(cublasLtMatrixLayoutCreate(&p->a, type, K, N, (int64_t)K));
        TRY(cublasLtMatrixLayoutCreate(&p->b, type, K, M, (int64_t)K));
        TRY(cublasLtMatrixLayoutCreate(&p->out, out_type, N, M, (int64_t)N));
        p->swapped = true;
    } else if (t->pass == CONV_DATA) {
        TRY(cublasLtMatrixLayoutCreate(&p->a, type, K, N, (int64_t)K));
        TRY(cublasLtMatrixLayoutCreate(&p->b, type, N, M, (int64_t)N));
        TRY(cublasLtMatrixLayoutCreate(&p->out, out_type, K, M, (int64_t)K));
        p->swapped = true;
    } else {
        TRY(set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &turn, sizeof turn));
        TRY(cublasLtMatrixLayoutCreate(&p->a, type, K, M, (int64_t)K));
        TRY(cublasLtMatrixLayoutCreate(&p->b, type, N, M, (int64_t)N));
        TRY(cublasLtMatrixLayoutCreate(&p->out, out_type, K, N, (int64_t)K));
    }
    if (fuses(t))
        TRY(set_epilogue(t, bias, p));
    TRY(cublasLtMatmulPreferenceCreate(&p->preference));
    TRY(cublasLtMatmulPreferenceSetAttribute(p->preference,
                                             CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof reductions));
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        TRY(cublasLtMatmulPreferenceSetAttribute(p->preference, operands[i], &align, sizeof align));
    return cublasLtMatmulPreferenceSetAttribute(p->preference,
                                                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &workspace, sizeof workspace);
}

/* The heuristics' list, the same for the same shape and library: an offer's id is its place in the
 * list. Of the bias pointer only the alignment counts, and all ours are aligned to 64 bytes. */
static int heuristics(device *d, const product *p, cublasLtMatmulHeuristicResult_t *list)
{
    int found = 0;
    if (cublasLtMatmulAlgoGetHeuristic(d->lt, p->desc, p->a, p->b, p->out, p->out, p->preference,
                                       GEMM_OFFERS, list, &found))
        return 0;
    return found;
}

int driver_gemm_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    static const float aligned_bias[64] __attribute__((aligned(256)));
    cleanup_product product p = {0};
    cublasLtMatmulHeuristicResult_t ways[GEMM_OFFERS];
    if (describe(t, t->bias ? aligned_bias : NULL, &p))
        return 0;
    int found = heuristics(d, &p, ways), count = 0;
    for (int i = 0; i < found && count < room; i++) {
        if (ways[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        list[count].id = GEMM_FIRST_ID + i;
        list[count].workspace = ways[i].workspaceSize;
        snprintf(list[count].name, sizeof list[count].name, "cublaslt-%d", i);
        count++;
    }
    return count;
}

int driver_gemm_offer(device *d, const conv_task *t, const char *name, conv_offer *out)
{
    conv_offer list[GEMM_OFFERS];
    if (strncmp(name, "cublaslt-", 9) != 0 || !driver_gemm_fits(t))
        return -1;
    return conv_offer_find(list, driver_gemm_offers(d, t, list, GEMM_OFFERS), name, out);
}

static cublasStatus_t run(device *d, const conv_task *t, int id, const conv_operands *o)
{
    cleanup_product product p = {0};
    cublasLtMatmulHeuristicResult_t ways[GEMM_OFFERS];
    const float one = 1, beta = t->add ? 1 : 0;
    TRY(describe(t, o->bias, &p));
    int at = id - GEMM_FIRST_ID;
    if (at >= heuristics(d, &p, ways) || ways[at].workspaceSize > o->workspace_bytes)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    TRY(cublasLtMatmul(d->lt, p.desc, &one, p.swapped ? o->b : o->a, p.a, p.swapped ? o->a : o->b,
                       p.b, &beta, o->out, p.out, o->out, p.out, &ways[at].algo, o->workspace,
                       o->workspace_bytes, d->stream));
    if (t->pass == CONV_FORWARD && (t->bias || t->relu) && !fuses(t))
        cuda_bias(d->stream, t->t, (size_t)t->s.n * (size_t)t->s.p * (size_t)t->s.q, t->s.k,
                  o->bias, t->relu, o->out);
    return CUBLAS_STATUS_SUCCESS;
}

int driver_gemm_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    cublasStatus_t status = run(d, t, id, o);
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, ERR_UNAVAILABLE, "cuBLASLt on the GPU: %s", cublasLtGetStatusString(status));
}
