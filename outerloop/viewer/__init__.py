"""The web view: pages and JSON of the record and the slots. It only reads.

It may import the controller's views, health, timeline and argument, the slots and the pure rooms. It must not know the
command line, submit, advance or write anything; its database role needs SELECT and nothing else.

Not here: what an answer means (controller.health), the questions to the record (controller.views, controller.history).
"""
