// Package bpfmap owns the BPF maps: it creates or opens them, resizes, pins and closes them, and
// implements [github.com/beeline-lb/beeline/pkg/tables.Store] over the growable tables: its writes,
// and the snapshot that a new agent begins with.
//
// Other entries have packages of their own: devicemap, flowmap, nodemap and statusmap. Byte order
// and the layout of C types stay inside these and pkg/bpf.
//
// It exports many names because the packages of entries use the maps themselves: what opens, reads and
// describes one is exported.
package bpfmap
