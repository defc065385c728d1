// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached by packets: from clients outside of the node, at the devices
 * that face them. A packet is translated towards the backend at ingress and the
 * reply is translated back at egress of the same device, so conntrack and firewalls
 * in between see one connection with the backend. A packet to a backend on another
 * node gets a source address of this one (SNAT) and leaves at once; its reply is
 * translated back at ingress.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* For the headers that do not mind which kind of program includes them. */
#define BL_CONTEXT __sk_buff
#define bl_context_ct_lookup bpf_skb_ct_lookup
#define bl_context_mark(context) ((context)->mark)
#define BL_ANSWERS true
#define BL_EVENT_HOOK BL_EVENT_AT_TC
/* XDP may have stored the flow of the packet. */
#define BL_SYN_FIRST false
#define BL_KEEPS_FORMER false

#include <beeline/pipeline.h>
#include <beeline/next_hop.h>
#include <beeline/skb.h>
#include <beeline/opt/answer.h>
#include <beeline/opt/echo.h>
#include <beeline/opt/fragment_skb.h>
#include <beeline/opt/icmp_skb.h>
#include <beeline/opt/sandbox_skb.h>
#include <beeline/opt/too_big.h>
#include <beeline/opt/traffic_packet.h>
#include <beeline/opt/tunnel_skb.h>

#define BL_VLAN_ID_MASK 0xfff

/*
 * The bit that marks what is translated to a backend on this node, by which a firewall
 * lets it in; 0 marks nothing.
 */
volatile const __u32 bl_forward_mark;

/*
 * The checksum of a UDP packet once it is rewritten, where the kernel would get it
 * wrong, which is that of a tunnel; else 0. When the checksum of the packet inside is
 * left to the device, the outer one is complete nevertheless (local checksum offload),
 * but the kernel takes it for the one that is left. It tells so by changing nothing
 * when asked to.
 */
__noinline __u32 bl_tc_tunnel_checksum(struct __sk_buff *skb, const struct bl_packet *packet,
				       const struct bl_rewrite *to)
{
	__u32 at, addrs, ports;
	__u16 sum;

	if (!packet || !to)
		return 0;
	if (packet->part != BL_PACKET_WHOLE || skb->gso_size ||
	    bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 0;
	at = packet->l4 + offsetof(struct udphdr, check);
	if (bpf_skb_load_bytes(skb, at, &sum, sizeof(sum)) || !sum)
		return 0;
	if (sum == bl_csum_unfinished(packet) || !bl_packet_unsummed(skb, at))
		return 0;
	addrs = bl_csum_change((const __u32 *)&packet->key.src, (const __u32 *)&to->src, 8);
	ports = bl_csum_change((const __u32 *)&packet->key.src_port, (const __u32 *)&to->src_port,
			       1);
	sum = bl_csum_fold((__u16)~sum + (addrs & 0xffff) + (addrs >> 16) + (ports & 0xffff) +
			   (ports >> 16));
	return sum ? sum : 0xffff;
}

static __always_inline bool bl_tc_rewrite(struct __sk_buff *skb, const struct bl_packet *packet,
					  const struct bl_rewrite *to, bool hop)
{
	__u16 tunnel =
		packet->key.proto == IPPROTO_UDP ? bl_tc_tunnel_checksum(skb, packet, to) : 0;

	if (!(packet->plain ? bl_packet_rewrite_plain(skb, packet, to, hop)
			    : bl_packet_rewrite(skb, packet, to, hop)))
		return false;
	return !tunnel || !bpf_skb_store_bytes(skb, packet->l4 + offsetof(struct udphdr, check),
					       &tunnel, sizeof(tunnel), 0);
}

/* Translate the packet and send it on. */
static __always_inline int bl_tc_go(struct __sk_buff *skb, const struct bl_packet *packet,
				    const struct bl_path *path)
{
	__u32 ifindex, mtu;
	long fits;

	if (path->tunnel)
		return bl_tc_tunnel(skb, packet, path);
	if (path->clamp)
		bl_tunnel_clamp_mss(skb, packet);
	if (!path->device || path->device == BL_DEVICE_HAIRPIN) {
		if (!bl_tc_rewrite(skb, packet, &path->to, false))
			return TC_ACT_SHOT;
		return path->back || path->device
			       ? bl_answer_return(skb, packet->l3, packet->leaves)
			       : BL_TC_PASS;
	}
	if (packet->ttl <= 1)
		return bl_answer_time_exceeded(skb, packet);
	ifindex = bl_tc_ifindex(skb, path->device, &path->to, packet->ipv4);
	if (!ifindex)
		return TC_ACT_SHOT;
	/* The length by the IP header's start; of many packets in one, that of each. */
	mtu = skb->gso_size ? 0 : skb->len - packet->l3;
	fits = bpf_check_mtu(skb, ifindex, &mtu, 0, skb->gso_size ? BPF_MTU_CHK_SEGS : 0);
	if (fits == BPF_MTU_CHK_RET_FRAG_NEEDED || fits == BPF_MTU_CHK_RET_SEGS_TOOBIG)
		return bl_too_big(skb, packet, mtu);
	if (!bl_tc_rewrite(skb, packet, &path->to, true))
		return TC_ACT_SHOT;
	/*
	 * To a backend by the client's address, as of a packet that the kernel forwards and then
	 * masquerades: a table of routes for the address of this node may know no backends.
	 */
	return bl_skb_send(skb, packet->l3, ifindex,
			   bl_next_hop_of(skb, path->device,
					  path->reply ? &path->to.src : &packet->key.src,
					  &path->to.dst));
}

/*
 * Whether the packet is not for this device: of a VLAN, whose device has programs of its
 * own where it faces clients, or received for another host, as in promiscuous mode, or for all
 * hosts of the link, each of which would serve it. What comes from a pod behind a bridge is for
 * another host at the pod's device: for the bridge.
 */
static __always_inline bool bl_tc_foreign(struct __sk_buff *skb, enum bl_hook hook)
{
	if (skb->vlan_present && skb->vlan_tci & BL_VLAN_ID_MASK)
		return true;
	switch (skb->pkt_type) {
	case PACKET_OTHERHOST:
		return hook == BL_HOOK_INGRESS;
	case PACKET_BROADCAST:
	case PACKET_MULTICAST:
		return !bl_hook_leaves(hook);
	}
	return false;
}

static __always_inline int bl_tc_packet(struct __sk_buff *skb, __u32 l3, enum bl_hook hook)
{
	struct bl_packet packet = {.ifindex = skb->ifindex, .leaves = hook == BL_HOOK_EGRESS};
	struct bl_path path = {};
	enum bl_verdict verdict;
	int action;

	/* What has been sent is what it is to be. */
	if (hook == BL_HOOK_EGRESS && bl_skb_was_sent(skb))
		return BL_TC_PASS;
	if (bl_tc_foreign(skb, hook))
		return BL_TC_PASS;

	packet.plain = bl_skb_plain(skb, l3, &packet);
	if (packet.plain || bl_packet_parse(skb, l3, &packet)) {
		if (hook == BL_HOOK_INGRESS && bl_tunnel_here(&packet))
			return bl_tunnel_take(skb, &packet);
		if (hook == BL_HOOK_EGRESS && bl_tunnel_port_is(&packet) &&
		    bl_tunnel_spoofed(skb, &packet)) {
			bl_packet_drop(&packet, BL_REASON_TUNNEL_SPOOFED);
			return TC_ACT_SHOT;
		}
		verdict = packet.part == BL_PACKET_LATER
				  ? bl_tc_recall_verdict(skb, &packet, hook, &path)
				  : bl_decide(skb, &packet, hook, &path);
		if (packet.key.masquerade)
			path.device = 0;
	} else if (packet.part == BL_PACKET_FIRST) {
		verdict = BL_VERDICT_PASSES;
	} else {
		action = bl_tc_icmp(skb, l3, hook, &path);
		if (action == BL_TC_NO_ERROR)
			return bl_echo(skb, l3, hook == BL_HOOK_EGRESS);
		if (!path.tunnel)
			return action;
		packet.part = BL_PACKET_LATER; /* without ports, and nothing is answered */
		return bl_tc_tunnel(skb, &packet, &path);
	}
	if (packet.part == BL_PACKET_FIRST && bl_tc_keep_verdict(&packet, hook, verdict, &path) &&
	    bl_reorder_release(skb, &packet, hook))
		return TC_ACT_SHOT;
	switch (verdict) {
	case BL_VERDICT_TRANSLATED:
		bl_count(BL_REASON_PACKET_TRANSLATED);
		bl_traffic_note(&packet, &path,
				(skb->gso_size ? skb->len : packet.l4 + packet.l4_len) - packet.l3,
				skb->gso_segs ?: 1);
		if (bl_forward_mark && hook == BL_HOOK_INGRESS && !path.device)
			skb->mark |= bl_forward_mark;
		if (hook == BL_HOOK_EGRESS && !path.reply && packet.part != BL_PACKET_LATER &&
		    !packet.key.masquerade && bl_flow_begins(&packet))
			bl_sandbox_tell(skb, &packet);
		return bl_tc_go(skb, &packet, &path);
	case BL_VERDICT_REFUSED:
		return bl_answer_refused(skb, &packet);
	case BL_VERDICT_DROPPED:
		return TC_ACT_SHOT;
	default:
		/* What is forwarded leaves by another device. */
		if (hook == BL_HOOK_INGRESS || hook == BL_HOOK_POD_INGRESS)
			bl_count(BL_REASON_PACKET_PASSED);
		return BL_TC_PASS;
	}
}

SEC("tc")
int bl_ingress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_HOOK_INGRESS);
}

SEC("tc")
int bl_egress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_HOOK_EGRESS);
}

/* For devices whose packets have no Ethernet header. */
SEC("tc")
int bl_ingress_l3(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, 0, BL_HOOK_INGRESS);
}

SEC("tc")
int bl_egress_l3(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, 0, BL_HOOK_EGRESS);
}

/* For the host's side of the devices of pods whose sockets cannot be translated. */
SEC("tc")
int bl_pod_ingress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_HOOK_POD_INGRESS);
}

SEC("tc")
int bl_pod_egress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_HOOK_POD_EGRESS);
}

/* For the host's side of the devices of other pods, which may be masqueraded backends. */
SEC("tc")
int bl_backend_ingress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_HOOK_BACKEND_INGRESS);
}

/* For the agent, which runs it on struct bl_found. */
SEC("tc")
int bl_tell(struct __sk_buff *skb)
{
	enum bl_event_hook hook;
	struct bl_found found;

	if (bpf_skb_load_bytes(skb, 0, &found, sizeof(found)))
		return TC_ACT_SHOT;
	switch (found.kind) {
	case BL_EVENT_ENDED:
		hook = BL_EVENT_AT_TIMEOUT;
		break;
	case BL_EVENT_EJECTED:
	case BL_EVENT_ADMITTED:
		hook = BL_EVENT_AT_LOOK;
		break;
	default:
		hook = BL_EVENT_AT_WALK;
	}
	bl_event_flow(&found.key, &found.forward, 0, BL_EVENT(found.kind, hook, BL_REASON_COUNT),
		      found.flows, found.seconds);
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
