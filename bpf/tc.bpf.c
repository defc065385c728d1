// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached by packets: from clients outside of the node, at the devices
 * that face them. A packet is translated towards the backend at ingress and the
 * reply is translated back at egress of the same device, so whatever looks at
 * packets in between sees one connection with the backend. What goes on to another
 * node gets a source address of this one and leaves at once; its reply is
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
#define BL_ANSWERS true
/* XDP may have stored the flow of the packet. */
#define BL_SYN_FIRST false

#include <beeline/decide.h>
#include <beeline/skb.h>
#include <beeline/answer.h>
#include <beeline/icmp.h>
#include <beeline/fragment.h>
#include <beeline/reorder.h>
#include <beeline/echo.h>
#include <beeline/tunnel_skb.h>

#define BL_VLAN_ID_MASK 0xfff

/*
 * The bit that marks what is translated to a backend on this node, by which a firewall
 * lets it in; 0 marks nothing.
 */
volatile const __u32 bl_forward_mark;

/* To the next program of the hook, then the stack: the packet is not ours. */
#define BL_TC_PASS TC_ACT_UNSPEC

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

/*
 * The interface index of the device @id in bl_device, by which a packet leaves that is
 * given the addresses of @to. 0 when there is none.
 */
static __always_inline __u32 bl_tc_ifindex(struct __sk_buff *skb, __u32 id,
					   const struct bl_rewrite *to, bool ipv4)
{
	const struct bl_device_entry *device;

	if (bl_masquerade_all && id == BL_DEVICE_ROUTED)
		return bl_route(skb, skb->ifindex, &to->src, &to->dst, ipv4);
	device = bl_device_lookup(id);
	return device ? device->ifindex : 0;
}

/* Send the packet on by the tunnel. */
static __always_inline int bl_tc_tunnel(struct __sk_buff *skb, const struct bl_packet *packet,
					const struct bl_way *way)
{
	int verdict;

	if (packet->ttl <= 1)
		return bl_answer_time_exceeded(skb, packet);
	verdict = bl_tunnel_send(skb, packet, way);
	return verdict < 0 ? bl_answer_too_big(skb, packet, -verdict) : verdict;
}

/* Translate the packet and send it on. */
static __always_inline int bl_tc_go(struct __sk_buff *skb, const struct bl_packet *packet,
				    const struct bl_way *way)
{
	__u32 ifindex, mtu;
	long fits;

	if (way->tunnel)
		return bl_tc_tunnel(skb, packet, way);
	if (way->clamp)
		bl_tunnel_clamp_mss(skb, packet);
	if (!way->device || way->device == BL_DEVICE_TURNED) {
		if (!bl_tc_rewrite(skb, packet, &way->to, false))
			return TC_ACT_SHOT;
		return way->back || way->device ? bl_answer_return(skb, packet->l3, packet->leaves)
						: BL_TC_PASS;
	}
	if (packet->ttl <= 1)
		return bl_answer_time_exceeded(skb, packet);
	ifindex = bl_tc_ifindex(skb, way->device, &way->to, packet->ipv4);
	if (!ifindex)
		return TC_ACT_SHOT;
	/* The length by the IP header's start; of many packets in one, that of each. */
	mtu = skb->gso_size ? 0 : skb->len - packet->l3;
	fits = bpf_check_mtu(skb, ifindex, &mtu, 0, skb->gso_size ? BPF_MTU_CHK_SEGS : 0);
	if (fits == BPF_MTU_CHK_RET_FRAG_NEEDED || fits == BPF_MTU_CHK_RET_SEGS_TOOBIG)
		return bl_answer_too_big(skb, packet, mtu);
	if (!bl_tc_rewrite(skb, packet, &way->to, true))
		return TC_ACT_SHOT;
	return bl_skb_send(skb, ifindex);
}

/* Whether an ICMP error about a flow is translated at this hook, as the packets are. */
static __always_inline bool bl_tc_error_here(const struct bl_flow_entry *flow, enum bl_hook hook)
{
	bool reply = flow->bits & BL_FLOW_IS_REPLY;
	bool pod = flow->bits & BL_FLOW_POD;
	bool snat = flow->bits & BL_FLOW_SNAT;

	if (flow->device == BL_DEVICE_TURNED)
		return hook == BL_HOOK_EGRESS;
	switch (hook) {
	case BL_HOOK_POD_INGRESS:
		return !reply || snat;
	case BL_HOOK_POD_EGRESS:
		return reply && (pod || snat);
	default:
		return !reply || !pod;
	}
}

/* The flow of an ICMP error that is translated at this hook. NULL when there is none. */
static __noinline const struct bl_flow_entry *bl_tc_error_flow(const struct bl_flow_key *key,
							       enum bl_hook hook)
{
	const struct bl_flow_entry *flow = bl_flow_lookup(key);

	return flow && bl_tc_error_here(flow, hook) ? flow : NULL;
}

/*
 * A packet that carries no Service: an echo request to an address of one is
 * answered, and an ICMP error about a packet of a flow goes to the side that sent that packet.
 * When that is by the tunnel, @way is set and the caller sends it.
 */
__noinline int bl_tc_icmp(struct __sk_buff *skb, __u32 l3, enum bl_hook hook, struct bl_way *way)
{
	struct bl_icmp_error error = {};
	const struct bl_flow_entry *flow;
	struct bl_rewrite to = {};
	__u32 id, ifindex = 0;

	if (!way)
		return TC_ACT_SHOT;
	if (!bl_icmp_parse(skb, l3, &error))
		return hook == BL_HOOK_POD_EGRESS ? BL_TC_PASS
						  : bl_echo(skb, l3, hook == BL_HOOK_EGRESS);
	flow = bl_tc_error_flow(&error.key, hook);
	if (!flow)
		return BL_TC_PASS;
	if (!(flow->bits & BL_FLOW_IS_REPLY) && bl_flow_leaves_by_tunnel(flow)) {
		if (hook == BL_HOOK_INGRESS)
			bl_way_to_backend(flow, way);
		return BL_TC_PASS;
	}
	to.src = flow->addr;
	to.src_port = flow->port;
	to.dst = flow->client;
	to.dst_port = flow->other_port;
	id = hook == BL_HOOK_EGRESS ? 0 : flow->device;
	if (!(flow->bits & BL_FLOW_IS_REPLY)) {
		to.src = error.key.src;
		to.src_port = flow->other_port;
		to.dst = flow->addr;
		to.dst_port = flow->port;
		if (flow->bits & BL_FLOW_SNAT && !bl_flow_snat_source(flow, error.ipv4, &to.src))
			return TC_ACT_SHOT;
	}
	if (id) {
		ifindex = bl_tc_ifindex(skb, id, &to, error.ipv4);
		if (!ifindex || error.ttl <= 1)
			return TC_ACT_SHOT;
	}
	if (!bl_icmp_rewrite(skb, &error, &to, id != 0))
		return TC_ACT_SHOT;
	if (flow->device == BL_DEVICE_TURNED)
		return bl_answer_return(skb, error.l3, true);
	return id ? bl_skb_send(skb, ifindex) : BL_TC_PASS;
}

/*
 * Keep what becomes of the first fragment of a datagram. True when others had come
 * before it: it is then put back together with them, and this packet is to be dropped.
 */
static __noinline bool bl_tc_keep_fate(struct __sk_buff *skb, const struct bl_packet *packet,
				       enum bl_hook hook, enum bl_fate fate,
				       const struct bl_way *way)
{
	struct bl_fragment_entry entry = {
		.to = way->to,
		.device = way->device,
		.second = bl_flow_now(),
		.fate = fate == BL_FATE_REFUSED ? BL_FATE_DROPPED : fate,
		.back = way->back,
		.tunnel = way->tunnel,
	};
	const struct bl_fragment_entry *former;
	struct bl_fragment_key key;
	bool overtaken;

	bl_fragment_key(packet, hook, &key);
	former = bpf_map_lookup_elem(&bl_fragment, &key);
	overtaken = former && former->fate == BL_FATE_UNKNOWN;
	/* The others of one that passes need not wait, where they would. */
	if (fate != BL_FATE_PASSES || overtaken || bl_reorder_wanted(packet))
		bpf_map_update_elem(&bl_fragment, &key, &entry, BPF_ANY);
	else if (former)
		bpf_map_delete_elem(&bl_fragment, &key);
	if (!overtaken || entry.fate == BL_FATE_DROPPED)
		return false;
	return bl_reorder_release(skb, packet->l3, &key);
}

/* Fill in what became of the first fragment of a datagram. False when it is not known. */
static __always_inline bool bl_tc_fate_known(const struct bl_fragment_key *key, struct bl_way *way,
					     enum bl_fate *fate)
{
	const struct bl_fragment_entry *entry = bpf_map_lookup_elem(&bl_fragment, key);

	if (!entry || entry->fate == BL_FATE_UNKNOWN ||
	    bl_flow_now() - entry->second > BL_FRAGMENT_SECONDS)
		return false;
	way->to = entry->to;
	way->device = entry->device;
	way->back = entry->back;
	way->tunnel = entry->tunnel;
	*fate = entry->fate;
	return true;
}

/* A later fragment: as its first one, when that has come. */
static __noinline enum bl_fate bl_tc_recall_fate(struct __sk_buff *skb,
						 const struct bl_packet *packet, enum bl_hook hook,
						 struct bl_way *way)
{
	enum bl_fate fate = BL_FATE_PASSES;
	struct bl_fragment_key key;

	bl_fragment_key(packet, hook, &key);
	if (bl_tc_fate_known(&key, way, &fate) || !bl_reorder_wanted(packet))
		return fate;
	if (bl_reorder_keep(skb, packet, &key))
		return BL_FATE_DROPPED;
	bl_tc_fate_known(&key, way, &fate);
	return fate;
}

/*
 * Whether the packet is for somebody else: of a VLAN, whose device has programs of its
 * own where it faces clients, or come in for another host, as a device in promiscuous
 * mode lets them in.
 */
static __always_inline bool bl_tc_foreign(struct __sk_buff *skb, enum bl_hook hook)
{
	if (skb->vlan_present && skb->vlan_tci & BL_VLAN_ID_MASK)
		return true;
	return (hook == BL_HOOK_INGRESS || hook == BL_HOOK_POD_INGRESS) &&
	       skb->pkt_type == PACKET_OTHERHOST;
}

static __always_inline int bl_tc_packet(struct __sk_buff *skb, __u32 l3, enum bl_hook hook)
{
	struct bl_packet packet = {.ifindex = skb->ifindex, .leaves = hook == BL_HOOK_EGRESS};
	struct bl_way way = {};
	enum bl_fate fate;
	int verdict;

	if (bl_tc_foreign(skb, hook))
		return BL_TC_PASS;

	packet.plain = bl_skb_plain(skb, l3, &packet);
	if (packet.plain || bl_packet_parse(skb, l3, &packet)) {
		if (hook == BL_HOOK_INGRESS && bl_tunnel_here(&packet))
			return bl_tunnel_take(skb, &packet);
		fate = packet.part == BL_PACKET_LATER ? bl_tc_recall_fate(skb, &packet, hook, &way)
						      : bl_decide(skb, &packet, hook, &way);
	} else if (packet.part == BL_PACKET_FIRST) {
		fate = BL_FATE_PASSES;
	} else {
		verdict = bl_tc_icmp(skb, l3, hook, &way);
		if (!way.tunnel)
			return verdict;
		packet.part = BL_PACKET_LATER; /* without ports, and nothing is answered */
		return bl_tc_tunnel(skb, &packet, &way);
	}
	if (packet.part == BL_PACKET_FIRST && bl_tc_keep_fate(skb, &packet, hook, fate, &way))
		return TC_ACT_SHOT;
	switch (fate) {
	case BL_FATE_TRANSLATED:
		bl_count(BL_REASON_PACKET_TRANSLATED);
		if (bl_forward_mark && hook == BL_HOOK_INGRESS && !way.device)
			skb->mark |= bl_forward_mark;
		return bl_tc_go(skb, &packet, &way);
	case BL_FATE_REFUSED:
		return bl_answer_refused(skb, &packet);
	case BL_FATE_DROPPED:
		return TC_ACT_SHOT;
	default:
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

char _license[] SEC("license") = "Dual BSD/GPL";
