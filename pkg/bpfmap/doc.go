// Package bpfmap holds the kernel's side of the tables: the maps with their growable
// tables, the writes that [github.com/beeline-lb/beeline/pkg/tables] asks for, and the
// way back from the maps to its types.
//
// Byte order and the layout of C types stay inside this package and
// [github.com/beeline-lb/beeline/pkg/bpf].
package bpfmap
