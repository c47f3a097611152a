#include "engine/train/divergence.h"

#include <math.h>

/* What f32 leaves of 1 - p is not less. */
static const double LEAST = 1e-7;

struct outcome {
    double teacher, student; /* log-probabilities */
};

/* *slope: the derivative by the student's probability, times that. */
static double part(double beta, struct outcome o, double *slope)
{
    double q = exp(o.teacher), p = exp(o.student);
    if (beta <= 0) return *slope = -q, q > 0 ? q * (o.teacher - o.student) : 0;
    if (beta >= 1) return *slope = p * (o.student - o.teacher), p > 0 ? p * (o.student - o.teacher) : 0;
    double high = fmax(o.teacher, o.student);
    double mixed = high + log(beta * exp(o.teacher - high) + (1 - beta) * exp(o.student - high));
    *slope = (1 - beta) * p * (o.student - mixed);
    return beta * q * (o.teacher - mixed) + (1 - beta) * p * (o.student - mixed);
}

double divergence(double beta, int n, bool rest, const float *teacher, const double *student, double *slope)
{
    double loss = 0, left = 1, left_student = 1, of_rest = 0;
    for (int i = 0; i < n; i++) {
        left -= exp((double)teacher[i]);
        left_student -= exp(student[i]);
    }
    if (rest) {
        struct outcome o = {log(fmax(left, LEAST)), log(fmax(left_student, LEAST))};
        loss += part(beta, o, &of_rest);
        of_rest /= exp(o.student);
    }
    for (int i = 0; i < n; i++) {
        loss += part(beta, (struct outcome){(double)teacher[i], student[i]}, &slope[i]);
        slope[i] -= of_rest * exp(student[i]);
    }
    return loss;
}
