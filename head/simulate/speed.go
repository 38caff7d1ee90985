package simulate

import (
	"math"
	"time"
)

// speed is how many times faster a job runs than with the ranks that it asks for.
func (s *sim) speed(j *job) float64 {
	if j.ranks == j.Spec.Ranks || j.ranks < 1 {
		return 1
	}
	return math.Pow(float64(s.Speedup), math.Log2(float64(j.ranks)/float64(j.Spec.Ranks)))
}

// takes is how long so much work takes with the ranks that a job has, if not longer than a
// run may last.
func (s *sim) takes(j *job, work time.Duration) time.Duration {
	v := s.speed(j)
	if v == 1 {
		return work
	}
	return time.Duration(min(math.Ceil(float64(work)/v), float64(never)))
}

// does is how much work a job does in so long with the ranks that it has.
func (s *sim) does(j *job, gone time.Duration) time.Duration {
	v := s.speed(j)
	if v == 1 {
		return gone
	}
	return time.Duration(min(math.Floor(float64(gone)*v), float64(never)))
}
