// Package kubeproxy removes the rules and chains that a kube-proxy has left in this
// network namespace, in each of its modes, and nothing that belongs to others:
//
//   - iptables mode: its chains and the rules that lead to them, in the tables of
//     iptables-nft and of iptables-legacy, for IPv4 and IPv6;
//   - nftables mode: the tables "kube-proxy";
//   - IPVS mode: its virtual servers, the device kube-ipvs0 and its sets, and the
//     chains.
//
// It talks to the kernel itself and needs none of the programs iptables, nft,
// ipset and ipvsadm.
//
// Connections that kube-proxy set up in the modes iptables and nftables go on: they are
// entries of connection tracking (conntrack), which translates them as long as the network
// namespace has a NAT chain. The tables "beeline-handover" have one when no other is left,
// for connections that others have masqueraded too; see [Follow].
//
// Firewalls that would drop what kube-proxy had them let through are opened in iptables ([Accept]), and found in
// nftables ([Dropping]).
package kubeproxy
