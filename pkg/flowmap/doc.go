// Package flowmap reads the flow tables that the programs write, removes flows from them, and
// reads and writes the counts and flags about flows that programs and agent share: half-open
// flows, SNAT port exhaustion, whether netfilter tracks connections.
//
// It exports more than 25 names because each state of a flow has one.
package flowmap
