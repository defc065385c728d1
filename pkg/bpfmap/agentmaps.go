package bpfmap

import "github.com/cilium/ebpf"

// AgentMaps are those that agents write and people read; the programs do not know them.
type AgentMaps struct {
	DeviceFault *ebpf.Map `ebpf:"bl_device_fault"`
	Told        *ebpf.Map `ebpf:"bl_told"`
}

// agentSpecs are the definitions of [AgentMaps], by name.
var agentSpecs = map[string]*ebpf.MapSpec{
	"bl_device_fault": {Name: "bl_device_fault", Type: ebpf.Hash, MaxEntries: 256, KeySize: 4, ValueSize: 256},
	"bl_told":         {Name: "bl_told", Type: ebpf.Array, MaxEntries: 2, KeySize: 4, ValueSize: 32},
}
