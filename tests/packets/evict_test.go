package packets_test

// Where and what of an entry of bl_flow its bits are.
const (
	flowSize   = 40
	flowBitsAt = flowSize - 1
	replyBit   = 1 << 3 // BL_FLOW_IS_REPLY
)

func isReply(entry []byte) bool { return entry[flowBitsAt]&replyBit != 0 }

// evict takes flow entries out of the kernel, as it does itself when it has no
// room, and returns how many.
func (a *agent) evict(which func(entry []byte) bool) int {
	a.t.Helper()
	flows := pinned(a.t, a.node.BPFFS, "bl_flow")
	var keys [][]byte
	var key, entry []byte
	entries := flows.Iterate()
	for entries.Next(&key, &entry) {
		if len(entry) != flowSize {
			a.t.Fatalf("an entry of bl_flow has %d bytes: see struct bl_flow_entry", len(entry))
		}
		if which(entry) {
			keys = append(keys, append([]byte(nil), key...))
		}
	}
	if err := entries.Err(); err != nil {
		a.t.Fatal(err)
	}
	for _, key := range keys {
		if err := flows.Delete(key); err != nil {
			a.t.Fatal(err)
		}
	}
	return len(keys)
}
