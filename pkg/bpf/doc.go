// Package bpf embeds the programs, with what bpf2go generates for them: a Go type for each struct
// and enum of the C headers, and structs of all programs, maps and variables. Beside these it has
// what converts between their values and Go's.
package bpf
