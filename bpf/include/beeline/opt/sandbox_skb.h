/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pods whose sockets the kernel does not see, as of a sandbox or a virtual machine: their packets
 * to Services come to the node's stack untranslated, and would leave the node. The agent serves
 * them at the pod's device once it is told.
 */
#pragma once

#include <beeline/packet.h>
#include <beeline/route.h>

/*
 * Tell the agent of a client's packet that leaves the node, and has come from a device which faces
 * neither clients nor other nodes.
 */
__noinline int bl_sandbox_tell(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_sandbox_packet seen = {};

	if (!packet)
		return 0;
	seen.ifindex = skb->ingress_ifindex;
	if (!seen.ifindex || bl_device_of(seen.ifindex) ||
	    bpf_map_lookup_elem(&bl_sandbox, &seen.ifindex))
		return 0;
	seen.addr = packet->key.src;
	bpf_ringbuf_output(&bl_sandbox_seen, &seen, sizeof(seen), 0);
	return 0;
}
