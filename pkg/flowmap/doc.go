// Package flowmap reads the flow tables that the programs write, removes flows from them, and
// has what is told to the programs, and by them, of flows: how many are half-open, source ports
// that ran out, whether netfilter tracks connections.
//
// It exports more than 25 names because each state of a flow has one.
package flowmap
