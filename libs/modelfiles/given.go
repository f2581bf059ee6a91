package modelfiles

import "github.com/nereid-serving/nereid/libs/errs"

// MaxGiven is how many files may come with one load. An empty one takes few
// bytes in a message and many times as much in memory.
const MaxGiven = 10_000

// TooManyGiven is the error for a load with more files.
func TooManyGiven(model string) error {
	return errs.New(errs.BodyTooLarge, "more than %d files are given to load a model with: put models of more files into the repository", MaxGiven).WithModel(model)
}
