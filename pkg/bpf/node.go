package bpf

import (
	"sync/atomic"
	"unsafe"
)

// nodeWord are the fields of a node that are stored at once.
type nodeWord struct{ flags, answer uint32 }

// Load returns by one load what the programs read at once.
func (e *SockBlNodeEntry) Load() (flags SockBlNodeFlag, answer SockBlNodeAnswer) {
	word := atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.Flags)))
	w := (*nodeWord)(unsafe.Pointer(&word))
	return SockBlNodeFlag(w.flags), SockBlNodeAnswer(w.answer)
}

// Store is the opposite of [SockBlNodeEntry.Load].
func (e *SockBlNodeEntry) Store(flags SockBlNodeFlag, answer SockBlNodeAnswer) {
	w := nodeWord{uint32(flags), uint32(answer)}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&e.Flags)), *(*uint64)(unsafe.Pointer(&w)))
}
