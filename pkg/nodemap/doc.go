// Package nodemap has what the other nodes of the cluster have answered, by which the programs
// send to them by the tunnel or not, and the marks that tunnel traffic carries. The nodes
// themselves are written by [github.com/beeline-lb/beeline/pkg/tables].
package nodemap
