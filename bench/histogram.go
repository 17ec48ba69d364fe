package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets. The width of a bucket is 1/32 of its value, so that a
// percentile is accurate to about 3 %.
type histogram struct {
	counts [64 * fine]uint32
	total  uint64
}

const (
	fineBits = 5
	fine     = 1 << fineBits
)

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(uint64(max(d, 0)))]++
	h.total++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// at returns the duration that a fraction q of all durations did not exceed.
func (h *histogram) at(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank, seen := uint64(q*float64(h.total-1)), uint64(0)
	for i, n := range h.counts {
		if seen += uint64(n); n > 0 && seen > rank {
			return time.Duration(middle(i))
		}
	}
	return 0
}

// bucket returns the bucket of v. Each value below fine has its own bucket. From there on, each
// power of two is divided into fine buckets.
func bucket(v uint64) int {
	if v < fine {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - fineBits
	return (shift+1)<<fineBits + int(v>>shift) - fine
}

func middle(i int) uint64 {
	if i < fine {
		return uint64(i)
	}
	shift := i>>fineBits - 1
	low := uint64(fine+i&(fine-1)) << shift
	return low + (uint64(1)<<shift)/2
}
