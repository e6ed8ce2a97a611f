"""Objective, loss, optimizer, schedules, mixed images, image sizes and averages of weights."""
