// Package clouds has doubles of systems that cannot run in a test: AWS STS, as the API reference of AWS describes it, and the API
// server of Kubernetes, as the API reference of Kubernetes describes it. They are strict: they verify every signature and every
// token, and refuse what they do not implement.
//
// They must never accept what the real system refuses.
package clouds
