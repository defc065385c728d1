package bpfmap

import (
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// AgentMaps are those that agents write and the command beeline reads; the programs do not know them.
type AgentMaps struct {
	DeviceFault *ebpf.Map `ebpf:"bl_device_fault"`
	Status      *ebpf.Map `ebpf:"bl_status"`
	Config      *ebpf.Map `ebpf:"bl_config"`
}

// ConfigEntry is what the agent was started with.
type ConfigEntry struct {
	// Waiting is when the oldest change came in that is not in the tables, ns since the
	// epoch; 0 is none. It is read and written by atomic operations.
	Waiting uint64
	// AsksConntrack is 1 when the programs can ask which connections netfilter tracks.
	AsksConntrack uint32
	Length        uint32      // of Text
	Text          [65520]byte // the configuration
}

// agentSpecs are the definitions of [AgentMaps], by name.
var agentSpecs = map[string]*ebpf.MapSpec{
	"bl_device_fault": {Name: "bl_device_fault", Type: ebpf.Hash, MaxEntries: 256, KeySize: 4, ValueSize: 256},
	"bl_status":       {Name: "bl_status", Type: ebpf.Array, MaxEntries: 2, KeySize: 4, ValueSize: 32},
	"bl_config": {
		Name: "bl_config", Type: ebpf.Array, MaxEntries: 1, KeySize: 4, ValueSize: 65536, Flags: unix.BPF_F_MMAPABLE,
	},
}
