// Package nodemap reads and writes the other nodes' answers whether they accept tunnel traffic,
// by which the programs choose between tunnel and SNAT, and the marks of the secret in tunnel
// traffic. The nodes themselves are written by [github.com/beeline-lb/beeline/pkg/tables].
package nodemap
