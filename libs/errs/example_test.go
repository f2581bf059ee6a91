package errs_test

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/nereid-serving/nereid/libs/errs"
)

// The reason of an error decides its status and code; its cause is for the log.
func Example() {
	err := errs.Wrap(errs.LoadFailed, fs.ErrNotExist, "the model file of %q cannot be read", "digits").WithModel("digits")
	wrapped := fmt.Errorf("load models: %w", err)

	e := errs.From(wrapped)
	fmt.Println(e.Reason, e.Reason.HTTP(), e.Model)
	fmt.Println(e.Msg)
	fmt.Println(errors.Is(wrapped, fs.ErrNotExist))
	// Output:
	// load_failed 400 digits
	// the model file of "digits" cannot be read
	// true
}

func ExampleClassified() {
	foreign := errors.New("connection reset")
	fmt.Println(errs.Of(foreign), errs.Classified(foreign))
	found := errs.New(errs.Bug, "the count of outputs is off")
	fmt.Println(errs.Of(found), errs.Classified(found))
	// Output:
	// bug false
	// bug true
}
