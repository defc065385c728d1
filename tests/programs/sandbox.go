package programs

// GVisor runs containers in a sandbox with a network stack of its own.
var GVisor = Set{
	Name:        "gvisor",
	Module:      "tests/packets/modules/gvisor",
	Packages:    map[string]string{"runsc": "gvisor.dev/gvisor/runsc"},
	LinkerFlags: "-s -w",
}
