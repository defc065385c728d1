// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached through sockets: the destination is rewritten before a packet
 * exists, so nothing is done per packet.
 */
#include <linux/in.h>

/* For the header that does not mind which kind of program includes it. */
#define BL_SOCK_CONTEXT bpf_sock_addr
#include <beeline/sock.h>

static __always_inline __u64 bl_context_netns(struct bpf_sock_addr *ctx)
{
	return bpf_get_netns_cookie(ctx);
}

/* The address that the socket is bound to; the any-address when it is not. */
static __always_inline union bl_addr bl_context_source(struct bpf_sock_addr *ctx, bool ipv4)
{
	struct bpf_sock *sk = ctx->sk;
	union bl_addr addr = {};
	__be32 ip4;

	if (ipv4) {
		ip4 = sk->src_ip4;
		/* Else clang joins both branches into arithmetic on @sk. */
		barrier_var(ip4);
		bl_addr_set_ipv4(&addr, ip4);
		return addr;
	}
	addr.word[0] = sk->src_ip6[0];
	addr.word[1] = sk->src_ip6[1];
	addr.word[2] = sk->src_ip6[2];
	addr.word[3] = sk->src_ip6[3];
	return addr;
}

#include <beeline/monitor_sock.h>
#include <beeline/sock_client.h>
#include <beeline/opt/ewma_sock.h>
#include <beeline/opt/nat.h>
#include <beeline/opt/outlier_sock.h>
#include <beeline/opt/traffic_sock.h>
#include <beeline/opt/udp_peer.h>
#include <beeline/opt/udp_service.h>

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

/* Return values of the programs of this type. */
enum bl_sock_verdict {
	BL_SOCK_REFUSE,
	BL_SOCK_PROCEED,
};

/* The family of the system call's address; an IPv6 one may have an IPv4 one in it. */
enum bl_sock_family {
	BL_SOCK_IPV4,
	BL_SOCK_IPV6,
};

/*
 * Address and port that the system call has, at a hook of @family; the rest is set by
 * bl_sock_protocol.
 */
static __always_inline void bl_sock_dst(struct bpf_sock_addr *ctx, enum bl_sock_family family,
					struct bl_dst *dst)
{
	dst->port = (__be16)ctx->user_port;
	if (family == BL_SOCK_IPV4) {
		dst->high = 0;
		dst->low = BL_MAPPED(ctx->user_ip4);
		dst->ipv4 = true;
		return;
	}
	dst->high = *(__u64 *)&ctx->user_ip6[0];
	dst->low = *(__u64 *)&ctx->user_ip6[2];
	dst->ipv4 = !dst->high && BL_IS_MAPPED(dst->low);
}

/* The other side of a translation; addr is NULL when nothing is translated, else BL_ALIGNED. */
struct bl_sock_other {
	const union bl_addr *addr;
	__be16 port;
};

/* Give the system call the address and port of @to, if there is one. */
static __always_inline void bl_sock_rewrite(struct bpf_sock_addr *ctx, enum bl_sock_family family,
					    const struct bl_sock_other *to)
{
	if (!to->addr)
		return;
	if (family == BL_SOCK_IPV4) {
		ctx->user_ip4 = to->addr->word[3];
	} else {
		*(__u64 *)&ctx->user_ip6[0] = ((const __u64 *)to->addr)[0];
		*(__u64 *)&ctx->user_ip6[2] = ((const __u64 *)to->addr)[1];
	}
	ctx->user_port = to->port;
}

/*
 * Tell what becomes of the client's system call for @dst, for which @backend is chosen by its id,
 * or ~0.
 */
static __always_inline void bl_tell_sock(const struct bl_client *client, const struct bl_dst *dst,
					 const struct bl_target *target, __u32 backend,
					 enum bl_event_kind kind, enum bl_reason reason)
{
	enum bl_event_hook hook =
		client->hook == BL_SOCK_CONNECT ? BL_EVENT_AT_CONNECT : BL_EVENT_AT_SENDMSG;

	if (bl_monitored())
		bl_event_sock(client->ctx, dst, bl_target_service(target), backend,
			      BL_EVENT(kind, hook, reason));
}

/*
 * Fail the system call for @dst with the error that stands for @reason, on the account of
 * @target, which need not have a Service.
 */
static __always_inline int bl_sock_refuse(const struct bl_client *client, const struct bl_dst *dst,
					  const struct bl_target *target, enum bl_reason reason)
{
	bool drops = bl_reason_drops(reason);

	bl_refuse_count(target->stat, reason);
	bpf_set_retval(drops ? -EHOSTUNREACH : -ECONNREFUSED);
	bl_tell_sock(client, dst, target, ~0U, drops ? BL_EVENT_DROPPED : BL_EVENT_REFUSED, reason);
	return BL_SOCK_REFUSE;
}

/*
 * Remember that the socket is connected to @dst through @choice. A socket that cannot be
 * marked is served all the same.
 */
static __always_inline void bl_sock_remember(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					     __u32 service, const struct bl_choice *choice)
{
	struct bl_sock_entry *sock = bl_sock_get(ctx);

	if (!sock)
		sock = bl_sock_create(ctx);
	if (unlikely(!sock)) {
		bl_choice_drop(choice);
		bl_count(BL_REASON_SOCK_NOT_STORED);
		return;
	}
	bl_sock_set(sock, dst, service, choice, BL_SOCK_CONNECTED);
}

/*
 * Whether the socket is to be served and its protocol one that Services carry; sets
 * dst->proto.
 */
static __always_inline bool bl_sock_protocol(struct bpf_sock_addr *ctx, struct bl_dst *dst)
{
	if (!bl_sock_served(ctx))
		return false;
	dst->pad = 0;
	dst->proto = bl_sock_carries(ctx->protocol);
	return dst->proto;
}

/*
 * Find the Service behind @dst; target->stat is NULL when there is none, or the socket is to be
 * left alone. Returns BL_SOCK_REFUSE with the error set when @dst must not be reached from this
 * socket.
 */
static __always_inline int bl_sock_find(const struct bl_client *client, const struct bl_dst *dst,
					struct bl_target *target)
{
	enum bl_reason reason = bl_service_find(client, dst, target);

	if ((target->stat || reason != BL_REASON_COUNT) &&
	    bl_nat_leaves(client->ctx, client->ipv4)) {
		target->stat = NULL;
		return BL_SOCK_PROCEED;
	}
	if (likely(reason == BL_REASON_COUNT))
		return BL_SOCK_PROCEED;
	return bl_sock_refuse(client, dst, target, reason);
}

/*
 * Choose a backend of @target for a new connection, which is counted only when its end will be seen:
 * bl_release does not run for the kernel's own sockets. Returns BL_SOCK_REFUSE with
 * the error set, and choice->backend NULL, when none may serve.
 */
static __always_inline int bl_sock_balance(const struct bl_client *client, const struct bl_dst *dst,
					   const struct bl_target *target, struct bl_choice *choice)
{
	*choice = bl_service_balance(client, dst, target);
	if (unlikely(!choice->backend))
		return bl_sock_refuse(client, dst, target, choice->reason);
	if (unlikely(choice->counted) && bl_sock_is_kernel(client->ctx->sk)) {
		bl_choice_drop(choice);
		choice->counted = false;
	}
	bl_tell_sock(client, dst, target, choice->ref.id, BL_EVENT_CONNECTION, BL_REASON_COUNT);
	return BL_SOCK_PROCEED;
}

/*
 * The socket goes to @dst itself, which may be the backend that a Service has led it to:
 * replies are shown as of @dst.
 */
static __always_inline void bl_sock_hide(struct bpf_sock_addr *ctx, struct bl_sock_entry *sock,
					 const struct bl_dst *dst)
{
	union bl_addr addr BL_ALIGNED;

	if (bl_dst_is(dst, &sock->addr, sock->port)) {
		sock->state = BL_SOCK_HIDDEN;
		sock->last_used = bpf_ktime_get_coarse_ns();
	}
	if (likely(!sock->spilled))
		return;
	bl_dst_get_addr(dst, &addr);
	bl_udp_forget_reply(ctx, &addr, dst->port);
}

/*
 * The backend of @service, which is at @dst, that this socket has used for it, if it may go
 * on using it. So does one that has been connected: the kernel goes on to drop what an IPv6
 * socket gets from other addresses.
 */
static __always_inline const struct bl_backend_entry *bl_udp_recall(struct bpf_sock_addr *ctx,
								    struct bl_sock_entry *sock,
								    const struct bl_dst *dst,
								    __u32 service, __u64 now)
{
	const struct bl_backend_entry *backend;

	if (!bl_dst_is(dst, &sock->vip, sock->vip_port))
		return unlikely(sock->spilled) ? bl_udp_recall_more(ctx, dst, service) : NULL;
	if (sock->state != BL_SOCK_CONNECTED && now - sock->last_used >= bl_udp_peer_idle)
		return NULL;
	backend = bl_backend_serving(sock->backend, service);
	if (!backend)
		return NULL;
	sock->state = BL_SOCK_UNCONNECTED;
	sock->last_used = now;
	if (unlikely(sock->spilled))
		bl_udp_forget_reply(ctx, &sock->addr, sock->port);
	return backend;
}

/*
 * Remember which backend the socket uses for @dst. Its first Service has the entry of the
 * socket, and keeps it until the socket has not sent to it for long.
 */
static __always_inline void bl_udp_remember(struct bpf_sock_addr *ctx, struct bl_sock_entry *sock,
					    const struct bl_dst *dst, __u32 service,
					    const struct bl_choice *choice, __u64 now)
{
	if (!sock) {
		sock = bl_sock_create(ctx);
	} else if (sock->vip_port) {
		if (!bl_dst_is(dst, &sock->vip, sock->vip_port) &&
		    (bl_sock_is_connected(ctx, sock) || now - sock->last_used < bl_udp_peer_idle)) {
			bl_choice_drop(choice);
			bl_udp_spill(ctx, sock, dst, choice);
			return;
		}
		if (choice->backend->port != sock->port ||
		    !bl_addr_equal(&choice->backend->addr, &sock->addr))
			bl_udp_retire(ctx, sock);
	}
	if (unlikely(!sock)) {
		bl_choice_drop(choice);
		bl_count(BL_REASON_UDP_PEER_NOT_STORED);
		return;
	}
	if (unlikely(sock->spilled))
		bl_udp_forget_reply(ctx, &choice->backend->addr, choice->backend->port);
	bl_sock_set(sock, dst, service, choice, BL_SOCK_UNCONNECTED);
	sock->last_used = now;
}

/*
 * The socket goes to something that is no Service: its replies are shown as such. A socket
 * that is connected to the Service shows that.
 */
static __always_inline void bl_sock_forget(struct bpf_sock_addr *ctx, const struct bl_dst *dst)
{
	struct bl_sock_entry *sock = bl_sock_get(ctx);

	if (!sock || bl_sock_is_connected(ctx, sock))
		return;
	bl_sock_hide(ctx, sock, dst);
}

/*
 * The socket connects to something that is no Service. Not to be called when
 * connect() is refused: a datagram socket then stays connected as it was.
 */
static __always_inline void bl_sock_disconnect(struct bpf_sock_addr *ctx, const struct bl_dst *dst)
{
	struct bl_sock_entry *sock = bl_sock_get(ctx);

	if (!sock)
		return;
	if (sock->state == BL_SOCK_CONNECTED) {
		bl_sock_drop(sock);
		sock->vip_port = 0;
	}
	bl_sock_hide(ctx, sock, dst);
}

/*
 * connect(): the backend in @to takes the place of @dst. Returns BL_SOCK_REFUSE with the
 * error set, or BL_SOCK_PROCEED.
 */
static __always_inline int bl_sock_connect(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					   struct bl_sock_other *to)
{
	struct bl_client client = {.ctx = ctx, .hook = BL_SOCK_CONNECT, .ipv4 = dst->ipv4};
	struct bl_target target;
	struct bl_choice choice;
	int verdict = bl_sock_find(&client, dst, &target);

	to->addr = NULL;
	if (verdict == BL_SOCK_REFUSE)
		return verdict;
	if (!target.stat) {
		bl_sock_disconnect(ctx, dst);
		return BL_SOCK_PROCEED;
	}
	verdict = bl_sock_balance(&client, dst, &target, &choice);
	if (verdict == BL_SOCK_REFUSE)
		return verdict;
	bl_sock_remember(ctx, dst, target.frontend.service, &choice);
	to->addr = &choice.backend->addr;
	to->port = choice.backend->port;
	return BL_SOCK_PROCEED;
}

/*
 * sendmsg() with an address: the backend of this datagram, in @to. Returns as
 * bl_sock_connect.
 */
static __always_inline int bl_sock_sendmsg(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					   struct bl_sock_other *to)
{
	struct bl_client client = {.ctx = ctx, .hook = BL_SOCK_SENDMSG, .ipv4 = dst->ipv4};
	const struct bl_backend_entry *backend = NULL;
	struct bl_sock_entry *sock;
	struct bl_target target;
	struct bl_choice choice;
	__u64 now;
	int verdict;

	to->addr = NULL;
	if (unlikely(ctx->sk->dst_port)) {
		sock = bl_sock_get(ctx);
		if (sock && bl_dst_is(dst, &sock->vip, sock->vip_port) &&
		    bl_sock_is_connected(ctx, sock)) {
			to->addr = &sock->addr;
			to->port = sock->port;
			return BL_SOCK_PROCEED;
		}
	}
	verdict = bl_sock_find(&client, dst, &target);
	if (verdict == BL_SOCK_REFUSE)
		return verdict;
	if (!target.stat) {
		bl_sock_forget(ctx, dst);
		return BL_SOCK_PROCEED;
	}
	now = bpf_ktime_get_coarse_ns();
	sock = bl_sock_get(ctx);
	if (sock)
		backend = bl_udp_recall(ctx, sock, dst, target.frontend.service, now);
	if (!backend) {
		verdict = bl_sock_balance(&client, dst, &target, &choice);
		if (verdict == BL_SOCK_REFUSE)
			return verdict;
		bl_udp_remember(ctx, sock, dst, target.frontend.service, &choice, now);
		backend = choice.backend;
	}
	to->addr = &backend->addr;
	to->port = backend->port;
	return BL_SOCK_PROCEED;
}

/* Serve a system call that names where it goes. */
static __always_inline int bl_sock_go(struct bpf_sock_addr *ctx, enum bl_sock_family family,
				      enum bl_sock_hook hook)
{
	struct bl_sock_other to;
	struct bl_dst dst;
	int verdict;

	if (!bl_sock_protocol(ctx, &dst))
		return BL_SOCK_PROCEED;
	bl_sock_dst(ctx, family, &dst);
	verdict = hook == BL_SOCK_CONNECT ? bl_sock_connect(ctx, &dst, &to)
					  : bl_sock_sendmsg(ctx, &dst, &to);
	bl_sock_rewrite(ctx, family, &to);
	return verdict;
}

SEC("cgroup/connect4")
int bl_connect4(struct bpf_sock_addr *ctx)
{
	return bl_sock_go(ctx, BL_SOCK_IPV4, BL_SOCK_CONNECT);
}

SEC("cgroup/connect6")
int bl_connect6(struct bpf_sock_addr *ctx)
{
	return bl_sock_go(ctx, BL_SOCK_IPV6, BL_SOCK_CONNECT);
}

SEC("cgroup/sendmsg4")
int bl_sendmsg4(struct bpf_sock_addr *ctx)
{
	return bl_sock_go(ctx, BL_SOCK_IPV4, BL_SOCK_SENDMSG);
}

SEC("cgroup/sendmsg6")
int bl_sendmsg6(struct bpf_sock_addr *ctx)
{
	return bl_sock_go(ctx, BL_SOCK_IPV6, BL_SOCK_SENDMSG);
}

/*
 * The Service that @peer of getpeername(), or with @received of a datagram, stands for:
 * the one that the socket is connected to, or the one last sent to that led to @peer.
 * vip->addr is NULL when @peer is what the application knows.
 */
static __always_inline void bl_sock_show(struct bpf_sock_addr *ctx, const struct bl_dst *peer,
					 bool received, struct bl_sock_other *vip)
{
	struct bl_sock_entry *sock = bl_sock_get(ctx);
	const struct bl_udp_peer_entry *reply;

	vip->addr = NULL;
	if (!sock)
		return;
	if (received && unlikely(sock->spilled) && !bl_sock_is_connected(ctx, sock)) {
		reply = bl_udp_reply(ctx, peer);
		if (reply) {
			vip->addr = &reply->addr;
			vip->port = reply->port;
			return;
		}
	}
	if (!sock->vip_port || sock->state == BL_SOCK_HIDDEN ||
	    !bl_dst_is(peer, &sock->addr, sock->port) ||
	    (!received && sock->state != BL_SOCK_CONNECTED))
		return;
	vip->addr = &sock->vip;
	vip->port = sock->vip_port;
}

/* Show the application who is at the other side. */
static __always_inline int bl_sock_tell(struct bpf_sock_addr *ctx, enum bl_sock_family family,
					bool received)
{
	struct bl_sock_other vip;
	struct bl_dst peer = {};

	bl_sock_dst(ctx, family, &peer);
	bl_sock_show(ctx, &peer, received, &vip);
	bl_sock_rewrite(ctx, family, &vip);
	return BL_SOCK_PROCEED;
}

SEC("cgroup/recvmsg4")
int bl_recvmsg4(struct bpf_sock_addr *ctx)
{
	return bl_sock_tell(ctx, BL_SOCK_IPV4, true);
}

SEC("cgroup/recvmsg6")
int bl_recvmsg6(struct bpf_sock_addr *ctx)
{
	return bl_sock_tell(ctx, BL_SOCK_IPV6, true);
}

SEC("cgroup/getpeername4")
int bl_getpeername4(struct bpf_sock_addr *ctx)
{
	return bl_sock_tell(ctx, BL_SOCK_IPV4, false);
}

SEC("cgroup/getpeername6")
int bl_getpeername6(struct bpf_sock_addr *ctx)
{
	return bl_sock_tell(ctx, BL_SOCK_IPV6, false);
}

/* A socket that may have been led to a Service is closed. */
static __always_inline void bl_sock_end(struct bpf_sock *ctx, struct bl_sock_entry *sock)
{
	if (bl_monitored() && sock->vip_port &&
	    (!bl_traffic_sampling || !(sock->member & BL_MEMBER_FOLLOWED)))
		bl_event_release(ctx, sock);
	bl_ewma_end(ctx, sock);
	bl_sock_drop(sock);
}

/* Free the place of a UDP socket in bl_udp_sock. False when what is known of it is in bl_sock. */
static __always_inline bool bl_udp_release(struct bpf_sock *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct bl_sock_entry *sock = bl_udp_place(cookie);

	if (!sock)
		return true;
	if (sock->owner != bl_udp_owner(cookie))
		return !sock->shared;
	bl_sock_end(ctx, sock);
	sock->vip_port = 0;
	sock->spilled = false;
	__sync_lock_test_and_set(&sock->owner, 0);
	return true;
}

/* The last descriptor of a socket is closed: its entries are removed. */
SEC("cgroup/sock_release")
int bl_release(struct bpf_sock *ctx)
{
	struct bl_sock_entry *sock;

	if ((ctx->protocol == IPPROTO_UDP && bl_udp_release(ctx)) ||
	    (!bl_active_used() && !bl_monitored()))
		return 1;
	sock = bpf_sk_storage_get(&bl_sock, ctx, NULL, 0);
	if (sock)
		bl_sock_end(ctx, sock);
	return 1;
}

/* Only attached where traffic is counted, or Services may ask for outlier detection. */
SEC("sockops")
int bl_sockops(struct bpf_sock_ops *ctx)
{
	struct bl_sock_entry *sock;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB && ctx->op != BPF_SOCK_OPS_STATE_CB &&
	    ctx->op != BPF_SOCK_OPS_RTO_CB)
		return 1;
	sock = ctx->sk ? bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0) : NULL;
	/* Not by a Service: a socket that has dissolved a connection may still tell of the next. */
	if (!sock || sock->state != BL_SOCK_CONNECTED || !sock->vip_port)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		bl_traffic_follow(ctx, sock);
		bl_outlier_follow(ctx, sock);
		return 1;
	}
	bl_outlier_told(ctx, sock);
	if (ctx->op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == BPF_TCP_CLOSE &&
	    sock->member & BL_MEMBER_FOLLOWED)
		bl_traffic_end(ctx, sock);
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
