package bpfmap

// SourcePorts are ports of the node that SNAT leaves to others.
type SourcePorts struct {
	// LocalMin and LocalMax bound the ephemeral port range, for connections of the node's own
	// processes, net.ipv4.ip_local_port_range. SNAT takes them last.
	LocalMin, LocalMax uint16
	// Reserved are those of net.ipv4.ip_local_reserved_ports, a bit each. SNAT never takes
	// them.
	Reserved [1024]uint64
}

// DefaultSourcePorts are Linux's.
var DefaultSourcePorts = SourcePorts{LocalMin: 32768, LocalMax: 60999}

// SourcePorts returns what SetSourcePorts has set.
func (m *Maps) SourcePorts() SourcePorts {
	e := m.Entries.SourcePort
	return SourcePorts{e.LocalMin, e.LocalMax, e.Reserved}
}

// SetSourcePorts sets the source ports that SNAT avoids. A new flow may meet a part
// of a change. It may be called beside all other methods.
func (m *Maps) SetSourcePorts(p SourcePorts) {
	e := m.Entries.SourcePort
	e.LocalMin, e.LocalMax, e.Reserved = p.LocalMin, p.LocalMax, p.Reserved
}
