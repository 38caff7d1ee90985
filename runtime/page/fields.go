package page

// The fields are stored little-endian, which is the native order of every machine
// this is built for; a test says so when that changes.

// Generation is the attempt that the page was made for (P3).
func (p *Page) Generation() uint64 { return p.load(offGeneration) }

// Step is the newest finished step, -1 before the first.
func (p *Page) Step() int64 {
	step := int64(p.load(offStep))
	if p.Spoiled() {
		return -1
	}
	return max(step, -1)
}

// Time is when Step was reported, CLOCK_MONOTONIC ns; 0 before the first report.
func (p *Page) Time() int64 { return int64(p.load(offTime)) }

// Calls is how often the rank has asked should_checkpoint.
func (p *Page) Calls() uint64 { return p.load(offCalls) }

// Phase is the CLOCK_MONOTONIC ns until which the rank's phase may last; 0: none.
func (p *Page) Phase() int64 { return int64(p.load(offPhase)) }

// Acknowledged is the number of the proposal that the rank has bound itself to.
func (p *Page) Acknowledged() uint64 { return p.load(offAcknowledged) }

// Proposal is the open proposal and its target step; number 0: none.
func (p *Page) Proposal() (number uint64, target int64) {
	number, v := p.pair(offProposal, offTarget)
	return number, int64(v)
}

// Settled is the newest proposal for which, and all before, the rank has nothing left to do.
func (p *Page) Settled() uint64 { return p.load(offSettled) }

// Verdict is the last decided proposal and what was decided: 0 dropped, 1 save after its
// step, 2 save and end. Number 0: none.
func (p *Page) Verdict() (number uint64, word int64) {
	number, v := p.pair(offVerdict, offAgreed)
	return number, int64(v)
}

// pair reads a value that belongs to a number. The writer clears the number while it
// changes the value and numbers do not come again, so that the same number before and
// after means that the value is its own. While a write is under way it reads as none.
func (p *Page) pair(number, value int) (n, v uint64) {
	n, v = p.load(number), p.load(value)
	if p.load(number) != n {
		return 0, 0
	}
	return n, v
}

func (p *Page) setPair(number, value int, n, v uint64) {
	p.store(number, 0)
	p.store(value, v)
	p.store(number, n)
}

// Stop reports whether should_stop answers true.
func (p *Page) Stop() bool { return p.load(offStop) == 1 }

// SetProposal opens proposal number for step target; number 0 withdraws it. A number
// is never used twice on one page. (shim)
func (p *Page) SetProposal(number uint64, target int64) {
	p.setPair(offProposal, offTarget, number, uint64(target))
}

// SetVerdict decides proposal number: 0 dropped, 1 save after its step, 2 save and end. (shim)
func (p *Page) SetVerdict(number uint64, word int64) {
	p.setPair(offVerdict, offAgreed, number, uint64(word))
}

// SetStop makes should_stop answer true, or false again. (shim)
func (p *Page) SetStop(stop bool) {
	var v uint64
	if stop {
		v = 1
	}
	p.store(offStop, v)
}

// StopBy is the CLOCK_MONOTONIC ns at which the rank is killed if it has not ended; 0: none.
func (p *Page) StopBy() int64 { return int64(p.load(offStopBy)) }

// SetStopBy tells when the rank is killed, CLOCK_MONOTONIC ns; 0: it is not. (shim)
func (p *Page) SetStopBy(at int64) { p.store(offStopBy, uint64(at)) }

// SetStep reports a finished step at CLOCK_MONOTONIC ns now. (rank)
func (p *Page) SetStep(step, now int64) {
	p.store(offStep, uint64(step))
	p.store(offTime, uint64(now)) // last, see the layout
}

// AddCall counts one should_checkpoint. (rank)
func (p *Page) AddCall() { p.store(offCalls, p.load(offCalls)+1) } // one writer

// SetPhase tells until when a long phase may last, CLOCK_MONOTONIC ns; 0 ends it. (rank)
func (p *Page) SetPhase(until int64) { p.store(offPhase, uint64(until)) }

// Acknowledge binds the rank to proposal number. (rank)
func (p *Page) Acknowledge(number uint64) { p.store(offAcknowledged, number) }

// Settle tells that nothing is left to do for proposal number and all before. (rank)
func (p *Page) Settle(number uint64) { p.store(offSettled, number) }
