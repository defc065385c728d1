// Package kernels_test holds what Beeline relies on in every kernel it supports.
// tools/kernels runs it in each of them; on the machine itself it needs root.
package kernels_test
