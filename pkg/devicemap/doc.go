// Package devicemap reads and writes the network devices that packets are served on, as the
// programs look them up: addresses and flags, MAC addresses, VLAN tags, and the ranges of pods
// behind them; and, for beeline status, the devices that could not be attached to.
package devicemap
