// Package bpfmap opens the maps, makes, resizes, pins and closes them, and keeps the growable
// tables: the writes that [github.com/beeline-lb/beeline/pkg/tables] asks for, and the way back
// from the maps to its types.
//
// What else the maps hold is read and written by packages of their own: devicemap, flowmap,
// nodemap and statusmap. Byte order and the layout of C types stay inside these and pkg/bpf.
package bpfmap
