package batch

import "fmt"

// InsufficientError is returned by a Ledger for a charge that the balance does not cover. Nothing was
// charged. Code INSUFFICIENT_BALANCE; 402.
type InsufficientError struct {
	Account    string
	Have, Need int64
}

func (e *InsufficientError) Error() string {
	return fmt.Sprintf("batch: account %.80q has %d points and needs %d", e.Account, e.Have, e.Need)
}

// Code returns INSUFFICIENT_BALANCE.
func (e *InsufficientError) Code() string { return "INSUFFICIENT_BALANCE" }

// HTTPStatus returns 402.
func (e *InsufficientError) HTTPStatus() int { return 402 }

// PriceError is returned by Submit for a price that cannot be charged. This call stored nothing. Code
// INVALID_PRICE; 422.
type PriceError struct {
	Item  int
	Price int64
	// Err is the error of Config.Price; nil: the price is negative, or the sum of the prices is too
	// large.
	Err error
}

func (e *PriceError) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("batch: item %d has no price: %v", e.Item, e.Err)
	case e.Price < 0:
		return fmt.Sprintf("batch: item %d has the negative price %d", e.Item, e.Price)
	}
	return fmt.Sprintf("batch: the prices up to item %d add up to more than an int64 holds", e.Item)
}

func (e *PriceError) Unwrap() error { return e.Err }

// Code returns INVALID_PRICE.
func (e *PriceError) Code() string { return "INVALID_PRICE" }

// HTTPStatus returns 422.
func (e *PriceError) HTTPStatus() int { return 422 }

// ItemError is returned by Finalize for an item that cannot be accepted. Nothing was changed. Code
// ITEM_STATE; 409.
type ItemError struct {
	Job   string
	Item  int
	State ItemState // empty: there is no such item
}

func (e *ItemError) Error() string {
	if e.State == "" {
		return fmt.Sprintf("batch: job %.80q has no item %d", e.Job, e.Item)
	}
	return fmt.Sprintf("batch: item %d of job %.80q is %s, and only an item that is made can be finalized", e.Item, e.Job, e.State)
}

// Code returns ITEM_STATE.
func (e *ItemError) Code() string { return "ITEM_STATE" }

// HTTPStatus returns 409.
func (e *ItemError) HTTPStatus() int { return 409 }

// StatusError is returned for an operation that the status of the job does not allow. Nothing was
// changed. Code JOB_STATUS; 409.
type StatusError struct {
	Job       string
	Status    Status
	Requested bool   // a cancel was requested
	Wanted    string // the operation
}

func (e *StatusError) Error() string {
	canceled := ""
	if e.Requested && e.Status != Canceled {
		canceled = " and to be canceled"
	}
	return fmt.Sprintf("batch: cannot %s job %.80q: it is %s%s", e.Wanted, e.Job, e.Status, canceled)
}

// Code returns JOB_STATUS.
func (e *StatusError) Code() string { return "JOB_STATUS" }

// HTTPStatus returns 409.
func (e *StatusError) HTTPStatus() int { return 409 }

// RemoveError is returned by Cancel when Config.Remove fails. The job stays canceling, with the
// error as its Reason, and is tried again by the workers and by the next Cancel. A worker that meets
// it on the way to Completed, for a failed item, tries again in the same way. Code REMOVE_FAILED;
// 502.
type RemoveError struct {
	Job  string
	Item int
	Err  error
}

func (e *RemoveError) Error() string {
	return fmt.Sprintf("batch: cannot remove what item %d of job %.80q made: %v", e.Item, e.Job, e.Err)
}

func (e *RemoveError) Unwrap() error { return e.Err }

// Code returns REMOVE_FAILED.
func (e *RemoveError) Code() string { return "REMOVE_FAILED" }

// HTTPStatus returns 502.
func (e *RemoveError) HTTPStatus() int { return 502 }
