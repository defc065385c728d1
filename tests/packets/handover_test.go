package packets_test

// publicServices are the Services of the API server: one with a backend on this
// node, and one with a backend on the other.
func publicServices() []string {
	const dual = "ipFamilyPolicy: RequireDualStack,"
	c := &cluster{nodes: [2]*node{{index: 1}, {index: 2}}}
	return append(c.service(1, "near", dual, []endpoint{{node: 1, place: "routed"}}),
		c.service(2, "far", dual, []endpoint{{node: 2, place: "routed"}})...)
}
