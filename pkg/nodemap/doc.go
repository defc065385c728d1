// Package nodemap owns the nodes of the cluster in the maps: it alone writes bl_node, bl_node_name
// and bl_node_id.
//
// [Store] writes nodes and their addresses for [github.com/beeline-lb/beeline/pkg/tables]. [Table]
// has the nodes' answers whether they accept tunnel traffic, by which the programs choose between
// tunnel and SNAT, and the marks of the secret in tunnel traffic.
package nodemap
