/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about flows, at tc.
 */
#pragma once

#include <beeline/next_hop.h>
#include <beeline/opt/icmp.h>
#include <beeline/opt/tunnel.h>

/* No action: bl_tc_icmp leaves the packet to others. */
#define BL_TC_NO_ERROR 0x10000

/* Whether an ICMP error about a flow is translated at this hook, as the packets are. */
static __always_inline bool bl_tc_error_here(const struct bl_flow_entry *flow, enum bl_hook hook)
{
	__u8 bits = bl_flow_bits(flow);
	bool reply = bits & BL_FLOW_IS_REPLY;
	bool pod = bits & BL_FLOW_POD;
	bool snat = bits & BL_FLOW_SNAT;

	if (flow->forward.device == BL_DEVICE_HAIRPIN)
		return hook == BL_HOOK_EGRESS;
	switch (hook) {
	case BL_HOOK_POD_INGRESS:
		return !reply || snat;
	case BL_HOOK_BACKEND_INGRESS:
		return reply && snat;
	case BL_HOOK_POD_EGRESS:
		return reply && pod;
	default:
		return !reply || !pod;
	}
}

/*
 * The flow of an ICMP error that is translated at this hook, by the key of packets that go where the
 * error does. NULL when there is none.
 */
static __noinline const struct bl_flow_entry *bl_tc_error_flow(struct bl_flow_key *key,
							       enum bl_hook hook)
{
	const struct bl_flow_entry *flow = bl_flow_find(key);

	if (flow)
		return bl_tc_error_here(flow, hook) ? flow : NULL;
	if (!bl_hook_leaves(hook))
		return NULL;
	key->masquerade = 1;
	return bl_flow_find(key);
}

/*
 * An ICMP error about a packet of a flow goes to the side that sent that packet. When that is
 * by the tunnel, @path is set and the caller sends it. BL_TC_NO_ERROR for another packet.
 */
__noinline int bl_tc_icmp(struct __sk_buff *skb, __u32 l3, enum bl_hook hook, struct bl_path *path)
{
	struct bl_icmp_error error = {};
	const struct bl_flow_forward *forward;
	const struct bl_flow_reply *reply;
	const struct bl_flow_entry *flow;
	struct bl_rewrite to = {};
	__u32 id, ifindex = 0;

	if (!path)
		return TC_ACT_SHOT;
	if (!bl_icmp_parse(skb, l3, skb->protocol, &error))
		return bl_hook_for_replies(hook) ? BL_TC_PASS : BL_TC_NO_ERROR;
	flow = bl_tc_error_flow(&error.key, hook);
	if (!flow)
		return BL_TC_PASS;
	forward = &flow->forward;
	reply = &flow->reply;
	id = hook == BL_HOOK_EGRESS || error.key.masquerade ? 0 : bl_flow_device(flow);
	if (bl_flow_bits(flow) & BL_FLOW_IS_REPLY) {
		to.src = reply->service;
		to.src_port = reply->service_port;
		to.dst = reply->client;
		to.dst_port = reply->client_port;
	} else if (bl_flow_leaves_by_tunnel(forward)) {
		if (hook == BL_HOOK_INGRESS)
			bl_path_to_backend(forward, path);
		return BL_TC_PASS;
	} else {
		to.src = error.key.src;
		to.src_port = forward->source.port;
		to.dst = forward->backend;
		to.dst_port = forward->backend_port;
		if (forward->bits & BL_FLOW_SNAT &&
		    !bl_flow_snat_source(forward, error.ipv4, &to.src))
			return TC_ACT_SHOT;
	}
	if (id) {
		ifindex = bl_tc_ifindex(skb, id, &to, error.ipv4);
		if (!ifindex || error.ttl <= 1)
			return TC_ACT_SHOT;
	}
	if (!bl_icmp_rewrite(skb, &error, &to, id != 0))
		return TC_ACT_SHOT;
	if (forward->device == BL_DEVICE_HAIRPIN)
		return bl_answer_return(skb, error.l3, true);
	return id ? bl_skb_send(skb, l3, ifindex,
				bl_next_hop_of(skb, id,
					       bl_flow_bits(flow) & BL_FLOW_IS_REPLY
						       ? &to.src
						       : &error.key.src,
					       &to.dst))
		  : BL_TC_PASS;
}
