// Package monitor reads what the programs tell of connections as they begin, end or fail.
//
// Each listener has a place of its own (bl_monitor) and a ring of its own, so that several do not
// take events from each other, and renews its place every second. The programs forget one that
// does not, so a process that is killed costs nothing for longer than [lease]. How much a
// listener may be told is counted by the programs before they make an event of anything.
package monitor
