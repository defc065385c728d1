package kubeproxy

import "github.com/google/nftables/expr"

// match says for which of the packets a rule goes on behind an expression, and keeps what that loads.
func match(e expr.Any, registers map[uint32]value, p *marked) truth {
	switch e := e.(type) {
	case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Objref:
		return yes
	case *expr.Immediate:
		registers[e.Register] = value{words: []word{exactly(e.Data)}}
		return yes
	case *expr.Meta:
		if !e.SourceRegister {
			registers[e.Register] = p.meta(e.Key)
		}
		return yes
	case *expr.Ct:
		if !e.SourceRegister {
			registers[e.Register] = p.ct(e.Key)
		}
		return yes
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			registers[e.DestRegister] = p.payload(e)
			return yes
		}
	case *expr.Bitwise:
		if len(e.Mask) == 0 || len(e.Mask) != len(e.Xor) { // a shift
			registers[e.DestRegister] = anything
			return yes
		}
		registers[e.DestRegister] = registers[e.SourceRegister].masked(e.Mask, e.Xor)
		return yes
	case *expr.Cmp:
		return compare(registers[e.Register], e)
	}
	clear(registers) // whatever it has loaded
	return maybe
}

// compare is nf_tables' expression cmp.
func compare(v value, e *expr.Cmp) truth {
	switch e.Op {
	case expr.CmpOpEq:
		return v.equals(e.Data)
	case expr.CmpOpNeq:
		return v.equals(e.Data).not()
	}
	return maybe
}
