package datapath

import (
	"sync"
	"weak"

	"github.com/cilium/ebpf/btf"
)

// held is what the kernel's types were read into last, as long as somebody uses it.
var held struct {
	mu    sync.Mutex
	types weak.Pointer[btf.Cache]
}

// kernelTypes returns the types of the kernel and its modules. They take milliseconds to read and
// megabytes to keep: they are shared, and read again once nobody holds them.
func kernelTypes() *btf.Cache {
	held.mu.Lock()
	defer held.mu.Unlock()
	types := held.types.Value()
	if types == nil {
		types = btf.NewCache()
		held.types = weak.Make(types)
	}
	return types
}

// lookup is held while types of the kernel are looked up, as for each program that is loaded:
// the types of a module have a lock of their own in cilium/ebpf v0.22, and change those of the
// kernel, which they refer to, without the kernel's.
var lookup sync.Mutex
