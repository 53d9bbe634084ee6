import unittest

from frontcode import decode, encode


class Coding(unittest.TestCase):
    def test_words_come_back(self):
        listed = sorted(["a", "ab", "abc", "b", "ä", "ära", "", "b"])
        self.assertEqual(decode(encode(listed)), listed)

    def test_unsorted_words_are_refused(self):
        with self.assertRaises(ValueError):
            encode(["b", "a"])


if __name__ == "__main__":
    unittest.main()
