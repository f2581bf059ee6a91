package modelfiles

import "github.com/nereid-serving/nereid/libs/errs"

// MaxLoadFiles is how many files may come with one load. An empty one takes few
// bytes in a message and many times as much in memory.
const MaxLoadFiles = 10_000

// TooManyLoadFiles is the error for a load with more files.
func TooManyLoadFiles(model string) error {
	return errs.New(errs.BodyTooLarge, "more than %d files are given to load a model with: put models of more files into the repository", MaxLoadFiles).WithModel(model)
}
