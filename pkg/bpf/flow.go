package bpf

import "unsafe"

// IsReply reports whether the entry is the reply entry of a flow; else it is the forward one.
func (e *SockBlFlowEntry) IsReply() bool {
	return uint32(e.Forward.Bits)&uint32(SockBlFlowBitsBL_FLOW_IS_REPLY) != 0
}

// Reply returns the entry as a reply entry.
func (e *SockBlFlowEntry) Reply() *SockBlFlowReply { return (*SockBlFlowReply)(unsafe.Pointer(e)) }

// State returns how far the flow has come.
func (e *SockBlFlowForward) State() SockBlFlowState {
	return SockBlFlowState(uint32(e.Bits) & uint32(SockBlFlowBitsBL_FLOW_STATE))
}

// Owns reports whether the forward entry is of the flow that has a reply entry with the key.
func (e *SockBlFlowForward) Owns(reply *SockBlFlowKey) bool {
	return e.Backend == reply.Src && e.BackendPort == reply.SrcPort && e.Source.Port == reply.DstPort
}

// ForwardKey returns the key of the forward entry that belongs to a reply entry.
func (e *SockBlFlowReply) ForwardKey(protocol uint8) SockBlFlowKey {
	masquerade := uint8(0)
	if uint32(e.Device) == uint32(SockBlDeviceLimitBL_DEVICE_MASQUERADE) && uint32(e.Bits)&uint32(SockBlFlowBitsBL_FLOW_SNAT) != 0 {
		masquerade = 1
	}
	return SockBlFlowKey{
		Src: e.Client, SrcPort: e.ClientPort,
		Dst: e.Service, DstPort: e.ServicePort,
		Proto: protocol, Masquerade: masquerade,
	}
}

// HalfOpen reports whether no packet of the client has come after a reply yet: it may be none
// that gets them.
func (s SockBlFlowState) HalfOpen() bool {
	return s < SockBlFlowStateBL_FLOW_ESTABLISHED || s >= SockBlFlowStateBL_FLOW_ABORTED
}
