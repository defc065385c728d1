// Package bpfmap holds the kernel's side of the tables: the types generated from
// the C headers, the maps with their growable tables, the writes that
// [github.com/beeline-lb/beeline/pkg/tables] asks for, and the way back from the
// maps to those types.
//
// Byte order and the layout of C types stay inside this package.
package bpfmap
